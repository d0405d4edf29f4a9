from drivetrain.launch import output


def test_lines_of_all_attempts_in_order_and_a_rank_apart(tmp_path):
    begin = output.begin(tmp_path, 0), output.begin(tmp_path, 1)
    for number, name in enumerate(begin):
        for kind in ("node-0", "node-1", "rank-0", "rank-10"):
            (tmp_path / f"{name}-{kind}.log").write_text(f"{kind} of attempt {number}\nmore")
    (tmp_path / output.CONDUCTOR).write_text("conductor\n")
    assert list(output.lines(tmp_path, None, None)) == [
        "conductor",
        *("node-0 of attempt 0", "more"),
        *("node-0 of attempt 1", "more"),
    ]
    assert list(output.lines(tmp_path, 10, None)) == ["rank-10 of attempt 0", "more", "rank-10 of attempt 1", "more"]
    assert list(output.lines(tmp_path / "nothing", 0, None)) == []


def test_following_gives_whole_lines_as_they_come_until_the_end(tmp_path):
    log = tmp_path / f"{output.begin(tmp_path, 0)}-rank-0.log"
    parts = iter(["one\ntw", "o\n", "", "three"])
    looks = []

    def ended():
        part = next(parts, None)
        if part is not None:
            with log.open("a") as file:
                file.write(part)
        looks.append(part)
        return part is None

    assert list(output.lines(tmp_path, 0, ended, sleep=lambda _: None)) == ["one", "two", "three"]
    assert len(looks) == 5
