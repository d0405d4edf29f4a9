"""Topics of Kafka as sources; what a path holds besides is named, and never shown."""

import pytest

from drivetrain.spec.exits import Failure
from pipelines import SMALL, composed_of, findings_of, lost_of, recipe_of

GROUP = "kafka://b1:9092,b2:9092/clicks?group.id=g"


def topic(path, config=SMALL):
    return config.replace('"train.csv"', f'"{path}"').replace("num_epochs: 2", "num_steps: 9")


def test_a_topic_is_a_source_without_an_end_and_of_validation_with_one():
    text = topic(f"{GROUP}&auto.offset.reset=earliest").replace('"test.csv"', f'"{GROUP}"')
    data = recipe_of(text).data
    (train,), validation = data.train.sources, data.validation["validation"]
    assert (train.kind, train.brokers, train.topic) == ("kafka", "b1:9092,b2:9092", "clicks")
    assert (train.format, train.start, train.until) == ("arrow", "earliest", "never")
    assert (validation.topic, validation.start, validation.until) == ("clicks", "latest", "latest")
    assert lost_of(text) == {}


def test_settings_with_credentials_go_to_a_file_and_their_values_are_nowhere():
    text = topic(f"{GROUP}&sasl.password=h1dden&security.protocol=SASL_SSL")
    composed, findings = composed_of(text), findings_of(text)
    (gap,) = composed.gaps
    assert gap.path == ("data", "train", "sources", 0, "properties")
    assert "sasl.password, security.protocol" in gap.what
    assert "h1dden" not in f"{composed.text} {findings.taken} {findings.lost} {findings.spared} {findings.gaps}"


@pytest.mark.parametrize("setting", ["start.timestamp.ms=1711929600000", "auto.offset.reset=error"])
def test_another_start_is_listed(setting):
    assert lost_of(topic(f"{GROUP}&{setting}")) == {"train_input_path": 1}


def test_a_topic_has_no_epochs_and_no_order_but_its_own():
    text = topic(GROUP).replace("num_steps: 9", "num_epochs: 2 save_checkpoints_epochs: 1")
    text = text.replace("with_header: true", "with_header: true shuffle: true")
    by_epoch = "exponential_decay_learning_rate { decay_size: 1 by_epoch: true }"
    text = text.replace("lr: 0.001 } constant_learning_rate {}", f"lr: 0.001 }} {by_epoch}")
    assert [gap.path for gap in composed_of(text).gaps] == [("budget", "steps"), ("schedule", "kind")]
    assert {"train_config.save_checkpoints_epochs", "data_config.shuffle"} < lost_of(text).keys()
    assert recipe_of(text).budget.epochs is None


@pytest.mark.parametrize("path", ["kafka://b1:9092", "kafka:///clicks", "kafka://me:h1dden@b1/clicks", "kafka://[/t"])
def test_a_path_that_is_none_is_a_mistake_that_does_not_show_it(path):
    with pytest.raises(Failure, match=r"p\.config:1: train_input_path: .*kafka://BROKER:PORT/TOPIC") as raised:
        findings_of(topic(path))
    assert "h1dden" not in f"{raised.value.outcome.cause}{raised.value.details}"


def test_a_data_set_of_kafka_has_a_topic_as_its_path():
    with pytest.raises(Failure, match="is no kafka://BROKER"):
        findings_of(SMALL.replace("CsvDataset", "KafkaDataset"))
