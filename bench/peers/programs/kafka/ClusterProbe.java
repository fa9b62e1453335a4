// What Kafka's own tools do not measure: one outstanding record, the first ack of a new topic, and
// a publisher beside a fault. Defaults of the Java client, with acks=all and linger.ms=0.
//
//   ClusterProbe latency   SERVERS TOPIC SIZE COUNT   percentiles, as JSON
//   ClusterProbe first-ack SERVERS TOPIC REPLICAS N   N new topics: from the call to the first ack
//   ClusterProbe probe     SERVERS TOPIC              for ever; a line "SENT ACKED" for each ack
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class ClusterProbe {
    private static final int PROBE_BYTES = 100;
    private static final long PAUSE_MS = 5;
    /** LEVELS of bench/stats.py: the shares by which a distribution is kept. */
    private static final double[] LEVELS = {
        0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1.0,
    };

    public static void main(String[] words) throws Exception {
        String servers = words[1];
        String topic = words[2];
        switch (words[0]) {
            case "latency" ->
                latency(servers, topic, Integer.parseInt(words[3]), Integer.parseInt(words[4]));
            case "first-ack" ->
                firstAck(servers, topic, Short.parseShort(words[3]), Integer.parseInt(words[4]));
            case "probe" -> probe(servers, topic);
            default -> throw new IllegalArgumentException(words[0]);
        }
    }

    private static void latency(String servers, String topic, int size, int count)
            throws Exception {
        double[] micros = new double[count];
        var record = record(topic, size);
        try (var producer = producer(servers)) {
            for (int i = 0; i < count / 20 + 1; i++) {
                producer.send(record).get();
            }
            for (int i = 0; i < count; i++) {
                long start = System.nanoTime();
                producer.send(record).get();
                micros[i] = (System.nanoTime() - start) / 1e3;
            }
        }
        Arrays.sort(micros);
        System.out.println("{\"p50_us\": " + at(micros, 0.5) + ", \"p99_us\": " + at(micros, 0.99)
                + ", \"max_us\": " + at(micros, 1.0) + ", \"levels_us\": {" + levels(micros) + "}}");
    }

    /** A first topic, not counted, lets both clients connect. */
    private static void firstAck(String servers, String topic, short replicas, int count)
            throws Exception {
        List<Double> millis = new ArrayList<>();
        try (var admin = Admin.create(settings(servers)); var producer = producer(servers)) {
            for (int i = 0; i <= count; i++) {
                String name = topic + "-" + i;
                long start = System.nanoTime();
                admin.createTopics(List.of(new NewTopic(name, 1, replicas))).all().get();
                producer.send(record(name, PROBE_BYTES)).get();
                if (i > 0) {
                    millis.add((System.nanoTime() - start) / 1e6);
                }
                admin.deleteTopics(List.of(name)).all().get();
            }
        }
        System.out.println("{\"first_ack_ms\": ["
                + millis.stream().map(String::valueOf).collect(Collectors.joining(", ")) + "]}");
    }

    /** On Linux nanoTime is CLOCK_MONOTONIC, which all processes share. */
    private static void probe(String servers, String topic) throws Exception {
        var record = record(topic, PROBE_BYTES);
        try (var producer = producer(servers)) {
            while (!System.out.checkError()) {
                long sent = System.nanoTime();
                try {
                    producer.send(record).get();
                    System.out.println(sent + " " + System.nanoTime());
                } catch (ExecutionException failure) {
                    System.err.println(failure.getCause());
                }
                Thread.sleep(PAUSE_MS);
            }
        }
    }

    private static String levels(double[] sorted) {
        return Arrays.stream(LEVELS).mapToObj(share -> "\"" + share + "\": " + at(sorted, share))
                .collect(Collectors.joining(", "));
    }

    private static double at(double[] sorted, double share) {
        return sorted[Math.max(0, (int) Math.ceil(sorted.length * share) - 1)];
    }

    private static ProducerRecord<byte[], byte[]> record(String topic, int size) {
        byte[] value = new byte[size];
        new Random(size).nextBytes(value);
        return new ProducerRecord<>(topic, value);
    }

    private static Properties settings(String servers) {
        var found = new Properties();
        found.put("bootstrap.servers", servers);
        return found;
    }

    private static KafkaProducer<byte[], byte[]> producer(String servers) {
        var found = settings(servers);
        found.put("acks", "all");
        found.put("linger.ms", "0");
        return new KafkaProducer<>(found, new ByteArraySerializer(), new ByteArraySerializer());
    }
}
