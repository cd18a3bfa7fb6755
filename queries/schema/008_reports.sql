-- schema: reports of commands over a trace, to be opened again

CREATE SEQUENCE report_ids;

CREATE TABLE reports (
    report_id  INTEGER PRIMARY KEY DEFAULT nextval('report_ids'),
    trace_id   INTEGER NOT NULL,
    kvscope    VARCHAR NOT NULL,    -- version
    created_at TIMESTAMP NOT NULL,  -- UTC
    command    VARCHAR NOT NULL,    -- 'kvscope tune'
    summary    VARCHAR NOT NULL,    -- its first sentence
    duration_s DOUBLE NOT NULL,     -- of the computation
    sections   VARCHAR NOT NULL,    -- JSON: titles, sentences, tables and plotly figures
    file       VARCHAR              -- recommendation.toml; NULL: it has none
);
