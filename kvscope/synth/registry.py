from kvscope.synth.to_c import ToC
from kvscope.synth.to_b import ToB
from kvscope.synth.agent import Agent
from kvscope.synth.birth_death import BirthDeath
PROFILES={"to-c": ToC(), "birth-death": BirthDeath(),"agent":Agent(),"to-b":ToB()}
