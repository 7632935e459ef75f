from __future__ import annotations

from dgr2.decoding.policy import ar_policy, native_policy, shipped_policy
from dgr2.evaluation.measure import cached, decode_row, judge, ordered_row, row_from_json, row_to_json


def test_ar_policy_decodes_again_only_what_its_rule_would_change(make_engine, held_out, say):
    a, b, c, d = say.labels

    def script(prompt, policy):
        broken = prompt[1] % 3 == 0 and not policy.permutation
        return say.respond([a, a, c, d] if broken else [d, c, b, a])

    engine = make_engine(script)
    done = []
    shipped, native, _ = decode_row(engine, held_out, (ar_policy(True), ar_policy(False)), done.append)
    assert engine.decoder.calls == [("ar", 12), ("ar", 4)]
    assert sum(done) == 2 * len(held_out)
    assert judge(engine, shipped, held_out, ar_policy(True), native=False).valid == [True] * 12
    natively = judge(engine, native, held_out, ar_policy(False), native=True)
    assert natively.valid == [i % 3 != 0 for i in range(12)]
    assert natively.flaws["duplicate"] == natively.flaws["dropped"] == [i % 3 == 0 for i in range(12)]


def test_ar_answer_opened_off_the_grid_is_decoded_again(make_engine, held_out, say):
    engine = make_engine(lambda prompt, policy: [say.think_end, *say.labels, say.eos])
    decode_row(engine, held_out, (ar_policy(True), ar_policy(False)))
    assert engine.decoder.calls == [("ar", 12), ("ar", 12)]


def test_block_row_decodes_twice_unless_the_shipped_policy_has_no_rule(make_engine, held_out, say, config):
    engine = make_engine(lambda prompt, policy: say.respond(list(say.labels)))
    native = native_policy(config.decode, config.grid)
    decode_row(engine, held_out, (shipped_policy(config.decode, config.grid), native))
    assert engine.decoder.calls == [("native", 12), ("policy", 12)]
    config.decode.answer_policy = "threshold"
    engine.decoder.calls.clear()
    decode_row(engine, held_out, (shipped_policy(config.decode, config.grid), native))
    assert engine.decoder.calls == [("native", 12)]


def test_ordered_row_scores_its_order(held_out):
    assert ordered_row(held_out, held_out.orders).policy.ranks == [0] * 12
    assert ordered_row(held_out, [[0, 1, 2, 3]] * 12).policy.ranks == held_out.targets


def test_row_survives_json(held_out):
    row = ordered_row(held_out, held_out.orders)
    assert row_from_json(row_to_json(row)) == row


def test_cache_answers_for_its_key_only(tmp_path):
    path = tmp_path / "row.json"
    assert cached(path, "k", lambda: {"x": 1}) == ({"x": 1}, False)
    assert cached(path, "k", lambda: {"x": 2}) == ({"x": 1}, True)
    assert cached(path, "other", lambda: {"x": 3}) == ({"x": 3}, False)
