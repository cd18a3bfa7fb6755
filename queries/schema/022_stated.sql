-- schema: what commands on a trace stated of deployment and SLO, for the next one

CREATE TABLE stated (
    trace_id INTEGER NOT NULL PRIMARY KEY,
    options  VARCHAR NOT NULL  -- JSON, by the name of the option
);
