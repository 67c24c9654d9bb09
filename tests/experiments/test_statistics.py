"""Intervals of differences, and what may be said of them."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

from vitlab.experiments.estimates import (
    SEED_DEVIATION,
    holm,
    over_images,
    residual,
    tails,
)
from vitlab.experiments.findings import conclusion, failed, overfitting, points, uneven
from vitlab.experiments.folder import Result, pack, unpack
from vitlab.experiments.spec import Arm, Experiment, Gain
from vitlab.experiments.statistics import differences, summaries, verdict


def result(arm: str, seed: int, value: float, **more: object) -> Result:
    return Result(
        **{"held_out": None, "images": 100, **more, "arm": arm, "seed": seed, "value": value}
    )


def two_arms(**more: object) -> Experiment:
    arms = (Arm(name="a", title="first"), Arm(name="b", title="second", against=("a",)))
    return Experiment(**{"name": "e", "title": "E", "arms": arms, "margin": 0.01, **more})


def students(gaps: Sequence[float]) -> tuple[float, float]:
    """The interval of the paired t-test."""
    low, high = scipy.stats.t.interval(
        0.95, len(gaps) - 1, loc=np.mean(gaps), scale=scipy.stats.sem(gaps)
    )
    return float(low), float(high)


@pytest.mark.parametrize("gaps", [(0.01, 0.03, 0.02), (-0.2, 0.1), (0.5, 0.4, 0.45, 0.7, 0.1)])
def test_two_arms_are_compared_by_the_paired_t_test(gaps: tuple[float, ...]) -> None:
    results = [result("a", s, 0.1 * s) for s in range(len(gaps))]
    results += [result("b", s, 0.1 * s + gap) for s, gap in enumerate(gaps)]
    (found,) = differences(two_arms(), results)
    assert (found.low, found.high) == pytest.approx(students(gaps), abs=1e-6)
    assert found.p == pytest.approx(scipy.stats.ttest_1samp(gaps, 0).pvalue, abs=1e-9)


@pytest.mark.parametrize("freedom", [1, 2, 3, 7, 14, 101, 2.5, 9_973, 499_979, 2e6, 1e12])
@pytest.mark.parametrize("t", [0.0, 0.3, 1.0, 4.3, 12.0])
def test_tails_are_students(t: float, freedom: float) -> None:
    assert tails(t, freedom) == pytest.approx(2 * scipy.stats.t.sf(t, freedom), abs=1e-6)
    assert tails(-t, freedom) == pytest.approx(2 * scipy.stats.t.sf(-t, freedom), abs=1e-6)
    assert tails(t, math.inf) == pytest.approx(2 * scipy.stats.norm.sf(t))


def test_holm() -> None:
    # The smallest times 4, the next times 3, and never less than those before.
    assert holm([0.03, 0.01, None, 0.005, 0.9]) == pytest.approx([0.06, 0.03, None, 0.02, 0.9])
    assert holm([0.02, 0.019, 0.5]) == pytest.approx([0.057, 0.057, 0.5])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([None]) == [None]


def test_the_residual_is_that_of_an_analysis_of_variance() -> None:
    draw = np.random.default_rng(3)
    values = draw.normal(size=(5, 1)) + draw.normal(size=(1, 3)) + 0.1 * draw.normal(size=(5, 3))
    results = [result(f"arm{a}", s, values[a, s]) for a in range(5) for s in range(3)]
    left = values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()
    found = residual(results)
    assert found is not None
    assert found.freedom == 8
    assert found.deviation == pytest.approx(math.sqrt((left**2).sum() / 8))
    # One is missing: a degree of freedom fewer, and the seeds of the others still explain them.
    found = residual(results[:-1])
    assert found is not None
    assert found.freedom == 7
    # Evaluated on other images, a seed has another effect.
    moved = [replace(r, images=7, value=(r.value or 0) + 5 * (r.arm == "arm4")) for r in results]
    assert residual([*results, *moved]) is not None
    assert residual([r for r in results if r.seed == 0]) is None


def test_all_arms_together_estimate_the_residual() -> None:
    spec = two_arms(arms=(Arm(name="a"), Arm(name="b", against=("a",)), Arm(name="c")))
    values = {"a": (0.5, 0.52, 0.51), "b": (0.55, 0.56, 0.56), "c": (0.3, 0.36, 0.31)}
    results = [result(arm, s, v) for arm, found in values.items() for s, v in enumerate(found)]
    pooled = residual(results)
    assert pooled is not None
    assert pooled.freedom == 4
    (found,) = differences(spec, results)
    half = scipy.stats.t.ppf(0.975, 4) * pooled.deviation * math.sqrt(2 / 3)
    mean = 0.14 / 3
    assert (found.low, found.high) == pytest.approx((mean - half, mean + half), abs=1e-6)


def test_many_comparisons_are_corrected() -> None:
    """Of pure noise, one interval in twenty excludes zero; a claim is then rarely made."""
    arms = (Arm(name="a"), *(Arm(name=f"b{n}", against=("a",)) for n in range(12)))
    spec, draw = two_arms(arms=arms), np.random.default_rng(0)
    excluded, claims = 0, 0
    for _ in range(60):
        results = [result(arm.name, s, draw.normal(0.5, 0.01)) for arm in arms for s in range(3)]
        found = differences(spec, results)
        excluded += any((item.low or 0) > 0 or (item.high or 0) < 0 for item in found)
        claims += any(item.verdict in ("better", "worse") for item in found)
    assert claims <= 6 < excluded


def test_seeds_are_paired_and_those_of_one_arm_alone_do_not_count() -> None:
    # Far apart from seed to seed, and always one point apart: only pairs can tell.
    values = {0: 0.2, 1: 0.5, 2: 0.8}
    results = [result("a", seed, value) for seed, value in values.items()]
    results += [result("b", seed, value + 0.05 + 0.001 * seed) for seed, value in values.items()]
    results.append(result("b", 3, 0.1))
    (found,) = differences(two_arms(), results)
    assert (found.seeds, found.over, found.verdict) == (3, "seeds", "better")
    assert found.mean == pytest.approx(0.051)
    assert summaries(two_arms(), results)["b"].mean == pytest.approx(
        (0.25 + 0.551 + 0.852 + 0.1) / 4
    )


def test_one_seed_is_judged_by_its_images() -> None:
    draw = np.random.default_rng(0)
    one, other = draw.random(997) < 0.8, draw.random(997) < 0.7
    ours = result("b", 0, one.mean(), images=997, right=pack(one.tolist()))
    theirs = result("a", 0, other.mean(), images=997, right=pack(other.tolist()))
    gaps = one.astype(float) - other
    alone = over_images([ours, theirs], same_weights=True)
    assert alone is not None
    assert alone.interval == pytest.approx(
        scipy.stats.norm.interval(0.95, gaps.mean(), gaps.std() / math.sqrt(997)), abs=1e-7
    )
    error = math.hypot(gaps.std() / math.sqrt(997), SEED_DEVIATION)
    with_seeds = over_images([ours, theirs], same_weights=False)
    assert with_seeds is not None
    assert (with_seeds.mean, with_seeds.error) == pytest.approx((gaps.mean(), error))
    (found,) = differences(two_arms(), [ours, theirs])
    assert (found.over, found.verdict) == ("images", "better")
    assert "one seed" in " ".join(conclusion(two_arms(), [found]))


def test_one_seed_left_of_several_claims_nothing() -> None:
    # Both told every image right or wrong: images alone would claim anything.
    sure = {"images": 8, "right": "ff"}
    results = [result("a", seed, 0.0, images=8, right="00") for seed in range(3)]
    results.append(result("b", 0, 1.0, **sure))
    (found,) = differences(two_arms(), results)
    assert (found.seeds, found.over, found.low, found.verdict) == (1, "seeds", None, "open")
    assert conclusion(two_arms(), [found]) == [
        "Differences without an interval, so that nothing is claimed: 1 of 1."
    ]
    assert differences(two_arms(), results[2:]) == []
    assert failed({"b, seed 1": "no", "b, seed 2": "no"}) == [
        "Failed, so that differences leave that seed out: b, seed 1; b, seed 2."
    ]
    assert failed({}) == []


def test_the_same_in_every_seed_claims_nothing() -> None:
    # Three seeds tie on twenty images, or judge the same weights three times.
    for gap in (0.0, 0.05):
        results = [
            result(arm, s, 0.5 + 0.1 * s + gap * (arm == "b")) for arm in "ab" for s in range(3)
        ]
        (found,) = differences(two_arms(), results)
        assert (found.seeds, found.low, found.verdict) == (3, None, "open")
        assert "nothing is claimed: 1 of 1." in conclusion(two_arms(), [found])[0]


def test_what_was_judged_by_other_images_is_not_compared() -> None:
    results = [result(arm, s, 0.1 * s + 0.2 * (arm == "b")) for arm in "ab" for s in range(3)]
    results[-1] = replace(results[-1], images=101)
    (found,) = differences(two_arms(), results)
    assert found.seeds == 2
    assert differences(two_arms(), [results[2], results[-1]]) == []


def test_comparisons_are_counted_and_what_they_leave_open_is_said() -> None:
    arms = (Arm(name="a"), *(Arm(name=name, against=("a",)) for name in "bcdef"))
    spec = two_arms(arms=arms)
    noise = np.random.default_rng(0).normal(0, 0.01, (6, 3))
    shift = dict(zip("abcdef", (0, 0, 0, 0, 0.2, 0.025), strict=True))
    results = [
        result(arm, s, 0.5 + shift[arm] + noise[row, s])
        for row, arm in enumerate(shift)
        for s in range(3)
    ]
    claim, caveat = conclusion(spec, differences(spec, results))
    assert claim.startswith("“e” is better than “a”")
    assert caveat.startswith(
        "Undecided, since the interval excludes zero only by itself and not among 5 comparisons: "
        "“f” against “a” (+"
    )
    results = [found for found in results if found.arm != "f"]
    assert conclusion(spec, differences(spec, results))[1:] == [
        "What is claimed holds after Holm's correction for 4 comparisons."
    ]


def test_one_seed_of_few_shots_is_judged_by_its_draws() -> None:
    # Draws differ a lot, and both arms share them: only pairs can tell.
    drawn = (0.2, 0.5, 0.8)
    gaps = (0.05, 0.055, 0.06)
    ours = tuple(x + gap for x, gap in zip(drawn, gaps, strict=True))
    results = [result("a", 0, 0.5, draws=drawn), result("b", 0, 0.555, draws=ours)]
    (found,) = differences(two_arms(), results)
    assert (found.over, found.verdict) == ("draws", "better")
    # The draws alone would have an error of 0.0029 with two degrees of freedom.
    error = math.hypot(scipy.stats.sem(gaps), SEED_DEVIATION)
    freedom = int(2 * (error / scipy.stats.sem(gaps)) ** 4)
    assert (found.low, found.high) == pytest.approx(
        scipy.stats.t.interval(0.95, freedom, loc=0.055, scale=error), abs=1e-6
    )
    assert "intervals cover other draws of the few images" in conclusion(two_arms(), [found])[-1]
    (other,) = differences(two_arms(), [results[0], result("b", 0, 0.5, draws=drawn[:2])])
    assert other.low is None


def test_what_one_gains_beside_another() -> None:
    arms = tuple(Arm(name=name, title=name.upper()) for name in "abcd")
    spec = two_arms(arms=arms, gains=(Gain(of=("a", "b"), beside=("c", "d")),))
    values = {"a": (0.5, 0.6, 0.7), "b": (0.4, 0.49, 0.61), "c": (0.3,) * 3, "d": (0.28,) * 3}
    results = [result(arm, s, v) for arm, found in values.items() for s, v in enumerate(found)]
    (found,) = differences(spec, results)
    # (0.1, 0.11, 0.09) less 0.02
    pooled = residual(results)
    assert pooled is not None
    assert pooled.freedom == 6
    half = scipy.stats.t.ppf(0.975, 6) * pooled.deviation * math.sqrt(4 / 3)
    assert (found.low, found.high) == pytest.approx((0.08 - half, 0.08 + half), abs=1e-6)
    said = conclusion(two_arms(arms=arms), [replace(found, p=0.01, verdict="better")])
    assert said[0].startswith("What “A” gains over “B” is more than what “C” gains over “D” by 8.0")
    bits = {"a": "f", "b": "0", "c": "f", "d": "f"}
    once = [result(arm, 0, float(r == "f"), images=4, right=r) for arm, r in bits.items()]
    (found,) = differences(spec, once)
    assert (found.over, found.mean) == ("images", 1.0)
    assert found.high == pytest.approx(1 + 1.959964 * SEED_DEVIATION * math.sqrt(2))
    assert spec.only(["b", "c"]).gains == ()


def test_overfitting_is_told() -> None:
    known = summaries(
        two_arms(), [result("a", 0, 0.5, probes={"train_accuracy": [0.75]}), result("b", 0, 0.5)]
    )
    assert overfitting(two_arms(), known) == [
        "Accuracy on the training images, and points above the test: “first” 75.0 % (+25.0)."
    ]
    assert overfitting(two_arms(measure="few-shot"), known) == []


def test_compute_of_what_an_arm_starts_from() -> None:
    arms = (
        Arm(name="a", once=True),
        Arm(name="b", how="tune", start="a"),
        Arm(name="c", how="tune", start="b"),
        Arm(name="d", how="tune", start="a", weights="fresh"),
    )
    results = [result("a", 0, 0.5, pflops=4.0, minutes=20.0)]
    results += [
        result(arm, s, 0.5, pflops=1.0 + s, minutes=2.0 + s) for arm in "bcd" for s in range(2)
    ]
    known = summaries(two_arms(arms=arms), results)
    assert [known[arm].before for arm in "abcd"] == [0.0, 4.0, 5.5, 0.0]
    assert [known[arm].minutes_before for arm in "abcd"] == [0.0, 20.0, 22.5, 0.0]


def test_one_seed_without_images_claims_nothing() -> None:
    (found,) = differences(two_arms(), [result("a", 0, 0.1), result("b", 0, 0.9)])
    assert (found.low, found.verdict) == (None, "open")
    assert "without an interval" in conclusion(two_arms(), [found])[0]
    tied = [result(arm, seed, 0.5 + 0.1 * (seed == 1)) for arm in "ab" for seed in range(2)]
    tied[0] = result("a", 0, 0.1)
    said = conclusion(two_arms(), differences(two_arms(), tied))
    assert said == ["No difference may be claimed."]


@pytest.mark.parametrize(
    ("mean", "different", "equal", "expected"),
    [
        *((0.03, 0.04, 0.9, "better"), (-0.03, 0.04, None, "worse"), (0.03, 0.06, 0.9, "open")),
        *((0.002, 0.3, 0.04, "equal"), (0.002, 0.01, 0.04, "equal"), (0.002, None, None, "open")),
    ],
)
def test_what_may_be_said(
    mean: float, different: float | None, equal: float | None, expected: str
) -> None:
    assert verdict(mean, different, equal) == expected


@pytest.mark.parametrize(("gap", "expected"), [(0.023, "open"), (-0.024, "open"), (0.03, "better")])
@pytest.mark.parametrize("count", [3001, 50_021])
def test_one_seed_claims_no_difference_below_two_and_a_half_points(
    gap: float, expected: str, count: int
) -> None:
    # One arm is right for some images more, and for none fewer: certain of images alone.
    high = round(0.5 * count + abs(gap) * count)
    bits = [n < high for n in range(count)], [n < count // 2 for n in range(count)]
    pairs = zip("ab" if gap < 0 else "ba", bits, strict=True)
    results = [
        result(arm, 0, sum(found) / count, images=count, right=pack(found))
        for arm, found in sorted(pairs)
    ]
    (found,) = differences(two_arms(), results)
    assert found.mean == pytest.approx(gap, abs=0.001)
    assert found.verdict == expected
    assert "different trainings are never called equal" in conclusion(two_arms(), [found])[-1]
    judged = Arm(name="b", how="test", start="a", image_size=40, against=("a",))
    (found,) = differences(two_arms(arms=(Arm(name="a"), judged)), results)
    assert found.verdict == ("worse" if gap < 0 else "better")  # the same weights
    drawn = replace(judged, positions="fresh")
    (found,) = differences(two_arms(arms=(Arm(name="a"), drawn)), results)
    assert found.verdict == expected


@pytest.mark.parametrize(("gap", "expected"), [(0.024, "open"), (0.029, "better")])
def test_one_seed_claims_no_small_difference_of_many_draws(gap: float, expected: str) -> None:
    noise = np.random.default_rng(0).normal(0.5, 0.0001, size=(2, 101))
    rows = [
        replace(result(arm, 0, 0.5), draws=tuple(noise[row] + gap * row))
        for row, arm in enumerate("ab")
    ]
    rows = [replace(row, value=float(np.mean(row.draws))) for row in rows]
    (found,) = differences(two_arms(), rows)
    assert found.verdict == expected


def test_sentences_follow_from_the_intervals() -> None:
    better = [result("a", s, 0.5) for s in range(3)] + [
        result("b", s, v) for s, v in enumerate((0.56, 0.57, 0.55))
    ]
    (sentence,) = conclusion(two_arms(), differences(two_arms(), better))
    assert sentence == "“second” is better than “first” by 6.0 points (+3.5 to +8.5)."
    equal = [result("a", s, 0.5) for s in range(3)] + [
        result("b", s, v) for s, v in enumerate((0.501, 0.5, 0.5))
    ]
    (found,) = differences(two_arms(), equal)
    (sentence,) = conclusion(two_arms(), [found])
    assert sentence == "“second” and “first” are equal within 1 point (0.0, −0.1 to +0.2)."


def test_series_are_compared_by_what_held_out_images_chose() -> None:
    arms = tuple(Arm(name=f"{s}{x}", series=s, x=x) for s in "pq" for x in (1, 2))
    spec = Experiment(name="e", title="E", arms=arms, choose="p")
    held_out = {"p1": 0.3, "p2": 0.4, "q1": 0.6, "q2": 0.5}
    # The test images would have chosen the others.
    tested = {"p1": 0.9, "p2": 0.4, "q1": 0.5, "q2": 0.9}
    results = [
        result(arm, seed, tested[arm] + 0.001 * seed * (arm[0] == "q"), held_out=held_out[arm])
        for arm in held_out
        for seed in range(2)
    ]
    (found,) = differences(spec, results)
    assert (found.arm, found.against, found.chosen) == ("q1", "p2", True)
    assert found.mean == pytest.approx(0.1005)
    (sentence,) = conclusion(spec, [found])
    assert sentence.startswith("“q1”, the best of “q”, is better than “p2”, the best of “p”, by 10")
    # While some have not had their turn, nothing says which is the best of "q".
    begun = [found for found in results if found.seed == 0 and found.arm != "q2"]
    assert differences(spec, begun) == []
    (found,) = differences(spec, begun, failed=["q2"])  # it has had its turn
    assert (found.arm, found.against) == ("q1", "p2")
    # The next round has begun with the worse of "p", which says nothing of the better one.
    (same,) = differences(spec, [*results, result("p1", 2, 0.9, held_out=0.9)])
    assert (same.arm, same.against, same.seeds) == ("q1", "p2", 2)


@pytest.mark.parametrize("count", [1, 4, 7, 100])
def test_bits_there_and_back(count: int) -> None:
    bits = (np.random.default_rng(count).random(count) < 0.5).tolist()
    assert unpack(pack(bits), count) == bits
    assert len(pack(bits)) == -(-count // 4)


def test_points_have_signs_and_no_negative_zero() -> None:
    assert [points(x) for x in (0.0123, -0.0123, -0.0001, 0.0)] == ["+1.2", "−1.2", "0.0", "0.0"]


def test_a_rate_that_failed_with_a_seed_is_not_chosen() -> None:
    arms = (
        Arm(name="p", series="p", x=1),
        *(Arm(name=name, series="q", x=x) for x, name in enumerate(("whole", "lucky"))),
    )
    spec = Experiment(name="e", title="E", arms=arms, choose="p")
    results = [result(arm, seed, 0.5, held_out=0.5) for arm in ("p", "whole") for seed in range(3)]
    results.append(result("lucky", 0, 0.9, held_out=0.9))
    assert [found.arm for found in differences(spec, results)] == ["whole"]


def test_what_was_trained_once_is_said() -> None:
    arms = (
        Arm(name="start", once=True),
        Arm(name="a", how="tune", start="start", weights="fresh"),
        Arm(name="b", how="tune", start="start", against=("a",)),
    )
    spec = Experiment(name="e", title="E", arms=arms)
    values = {"a": (0.5, 0.5, 0.5), "b": (0.6, 0.61, 0.62)}
    results = [result(arm, s, v) for arm, found in values.items() for s, v in enumerate(found)]
    said = conclusion(spec, differences(spec, results))
    assert said[-1].startswith("Each pre-training was done once")
    assert len(said) == 2


def test_compute_that_could_not_be_spent_is_said() -> None:
    spec = two_arms(matched="compute")
    for steps, reason in ((80, ": its steps are limited"), (79, "")):
        results = [
            result("a", 0, 0.5, pflops=1.0, steps=10),
            result("b", 0, 0.5, pflops=0.06, steps=steps),
        ]
        known = summaries(spec, results)
        assert uneven(spec, known) == [f"“second” spent 6.0% of the compute{reason}."]
    assert uneven(two_arms(), known) == []
