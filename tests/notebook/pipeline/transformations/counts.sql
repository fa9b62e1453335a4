-- Plain SQL over a stream: nothing here knows that flights is one.
CREATE MATERIALIZED VIEW flights_by_key AS
SELECT CAST(key AS STRING) AS aircraft, count(*) AS records, max(offset) AS newest
FROM flights
GROUP BY key;
