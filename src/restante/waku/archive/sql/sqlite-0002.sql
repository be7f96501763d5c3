-- Schema 2: an index of topics by the bits that a bloom filter must have to pass them.

-- `places` has the numbers of up to three of the 512 bits, as digits of nine bits each. A query finds the topics that
-- a filter passes by two of its bits at a time, however many topics there are.
--
-- The bits are those that status-go sets (waku/common/topic.go:45-60; restante.waku.envelope.bloom, `required_bits`).
-- The topic's first three bytes, each with one of the three lowest bits of the fourth, give one bit number each. If two
-- of the bits fall into the same byte of the filter, only the later one remains, and its number is in both digits.
ALTER TABLE topics ADD COLUMN place0 INTEGER GENERATED ALWAYS AS ((topic >> 24 & 255) + (topic & 1) * 256);
ALTER TABLE topics ADD COLUMN place1 INTEGER GENERATED ALWAYS AS ((topic >> 16 & 255) + (topic & 2) * 128);
ALTER TABLE topics ADD COLUMN place2 INTEGER GENERATED ALWAYS AS ((topic >> 8 & 255) + (topic & 4) * 64);
ALTER TABLE topics ADD COLUMN places INTEGER GENERATED ALWAYS AS (
    CASE place0 >> 3 WHEN place2 >> 3 THEN place2 WHEN place1 >> 3 THEN place1 ELSE place0 END * 262144
    + CASE place1 >> 3 WHEN place2 >> 3 THEN place2 ELSE place1 END * 512
    + place2
);
CREATE INDEX topics_places ON topics (places);
