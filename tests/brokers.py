"""A broker of Kafka for tests: the mock one of librdkafka, within this process, for every process of this machine."""

from __future__ import annotations

from collections.abc import Iterable

PARTITIONS = 4
"""Of each topic."""


class Broker:
    """Answers at `address` as long as it is there."""

    def __init__(self) -> None:
        from confluent_kafka import Producer

        self.producer = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "unused", "linger.ms": 0})
        (broker,) = self.producer.list_topics(timeout=10).brokers.values()
        self.address = f"{broker.host}:{broker.port}"

    def write(self, topic: str, partition: int, values: Iterable[bytes]) -> None:
        """Messages at a partition's end."""
        self.producer.list_topics(topic, timeout=10)
        for value in values:
            self.producer.produce(topic, value, partition=partition)
        assert self.producer.flush(20) == 0
