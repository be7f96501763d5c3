-- Topics by what a bloom filter must have to let them through: up to three of its 512 places, written in digits of
-- nine bits. A filter's topics are found by two of its places at a time, however many topics there are.
--
-- The places are those that status-go keeps (waku/common/topic.go:45-60; restante.waku.bloom, `kept`): a topic's
-- three bytes and the three lowest bits of its fourth are a place each, and where two of these fall into the same byte
-- of the filter, the later one is left, which here stands for both.
ALTER TABLE topics ADD COLUMN place0 INTEGER GENERATED ALWAYS AS ((topic >> 24 & 255) + (topic & 1) * 256);
ALTER TABLE topics ADD COLUMN place1 INTEGER GENERATED ALWAYS AS ((topic >> 16 & 255) + (topic & 2) * 128);
ALTER TABLE topics ADD COLUMN place2 INTEGER GENERATED ALWAYS AS ((topic >> 8 & 255) + (topic & 4) * 64);
ALTER TABLE topics ADD COLUMN places INTEGER GENERATED ALWAYS AS (
    CASE place0 >> 3 WHEN place2 >> 3 THEN place2 WHEN place1 >> 3 THEN place1 ELSE place0 END * 262144
    + CASE place1 >> 3 WHEN place2 >> 3 THEN place2 ELSE place1 END * 512
    + place2
);
CREATE INDEX topics_places ON topics (places);
