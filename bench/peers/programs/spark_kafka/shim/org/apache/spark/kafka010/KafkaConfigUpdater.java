package org.apache.spark.kafka010;

import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Map;

/** Our own stand-in for a Kafka without authentication; see bench/peers/spark_kafka.py. */
public class KafkaConfigUpdater {
    private final java.util.Map<String, Object> map = new java.util.HashMap<>();

    public KafkaConfigUpdater(String module, Map<String, String> params) {
        for (Iterator<scala.Tuple2<String, String>> i = params.iterator(); i.hasNext(); ) {
            scala.Tuple2<String, String> t = i.next();
            map.put(t._1(), t._2());
        }
    }

    public KafkaConfigUpdater set(String key, Object value) {
        map.put(key, value);
        return this;
    }

    public KafkaConfigUpdater setIfUnset(String key, Object value) {
        map.putIfAbsent(key, value);
        return this;
    }

    public KafkaConfigUpdater setAuthenticationConfigIfNeeded() {
        return this;
    }

    public KafkaConfigUpdater setAuthenticationConfigIfNeeded(Option<KafkaTokenClusterConf> cluster) {
        return this;
    }

    public java.util.Map<String, Object> build() {
        return map;
    }
}
