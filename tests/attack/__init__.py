"""Attacks on kvscope as a program: `make attack`, and a short run of each in the tests."""

from tests.attack.attack import Attack
from tests.attack.interruptions import FullDisk, Kills, TwoProcesses
from tests.attack.logs import Libraries, Logs
from tests.attack.names import Names
from tests.attack.outputs import Outputs
from tests.attack.parsers import Parsers
from tests.attack.settings import Files, Plugin
from tests.attack.stores import Stores
from tests.attack.trace_files import TraceFiles
from tests.attack.values import DatasetValues, StoreValues
from tests.attack.watch import Watched

ATTACKS: tuple[type[Attack], ...] = (
    Parsers,
    Logs,
    Libraries,
    TraceFiles,
    Stores,
    StoreValues,
    DatasetValues,
    Files,
    Plugin,
    Names,
    Outputs,
    Watched,
    Kills,
    FullDisk,
    TwoProcesses,
)
