"""dp_accounting and JAX Privacy with this accountant, with the real packages."""

import math
import random

import pytest

import veilgrad

dp = pytest.importorskip("dp_accounting")
from dp_accounting import dp_event  # noqa: E402

from veilgrad.dp_accounting import UnsupportedEvent, VeilgradAccountant, rounds, to_event  # noqa: E402

ADD, REPLACE, ZERO = (
    dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
    dp.NeighboringRelation.REPLACE_ONE,
    dp.NeighboringRelation.REPLACE_SPECIAL,
)
GAUSSIAN = dp_event.GaussianDpEvent(1.1)


def random_leaf(chance):
    def noise():
        return math.exp(chance.uniform(-3, 8))

    gaussian = dp_event.GaussianDpEvent(noise())
    if chance.random() < 0.3:
        gaussian = dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(noise()) for _ in range(chance.randint(2, 4))])
    records = chance.randint(1, 10**12)
    return chance.choice([
        dp_event.GaussianDpEvent(noise()),
        dp_event.PoissonSampledDpEvent(math.exp(chance.uniform(-20, 0)), gaussian),
        dp_event.SampledWithoutReplacementDpEvent(records, chance.randint(1, records), gaussian),
        dp_event.TruncatedSubsampledGaussianDpEvent(records, chance.random(), chance.randint(1, records), noise()),
    ])


def random_event(chance):
    leaves = [random_leaf(chance) for _ in range(chance.randint(1, 5))]
    leaves = [dp_event.SelfComposedDpEvent(leaf, chance.randint(2, 10**9)) if chance.random() < 0.6 else leaf for leaf in leaves]
    return leaves[0] if len(leaves) == 1 else dp_event.ComposedDpEvent(leaves)


@pytest.mark.parametrize(("relation", "relative_to"), [(ADD, None), (ZERO, "clip-norm"), (REPLACE, "clip-norm"), (REPLACE, "replacement")])
def test_a_thousand_random_events_come_back_unchanged(relation, relative_to):
    chance = random.Random(18)
    for _ in range(1000):
        event = random_event(chance)
        lines = rounds(event, relation, noise_relative_to=relative_to)
        assert to_event(lines, relation, noise_relative_to=relative_to) == event
        # The same through a file's dicts.
        assert to_event([line.to_dict() for line in lines], relation, noise_relative_to=relative_to) == event


def test_rounds_come_back_with_the_same_price():
    lines = [veilgrad.Round({"policy": "poisson", "rate": 0.01},
                            [{"group": "a", "clip": 0.3, "noise": 0.7}, {"group": "b", "clip": 3.0, "noise": 9.1}], 500),
             veilgrad.Round.all(30.0, rounds=3)]
    before, after = veilgrad.epsilon(lines, 1e-6), veilgrad.epsilon(rounds(to_event(lines)), 1e-6)
    assert before.epsilon <= after.epsilon * (1 + 1e-12)
    assert after.epsilon <= before.epsilon * (1 + 1e-6)


def test_exported_noise_is_never_larger_than_what_ran():
    # 0.7 / 0.3 rounds up in floating point; 2^20 / 900001 is what the integers say.
    ratio = to_event(veilgrad.Round({"policy": "all"}, [{"group": "g", "clip": 0.3, "noise": 0.7}])).noise_multiplier
    assert ratio * 0.3 <= 0.7 and ratio > 2.3333333333333
    query = {"group": "g", "clip": 1.0, "noise": 2**20 / 900001, "dimension": 5, "s_int": 900001, "k": 20}
    assert to_event(veilgrad.Round({"policy": "all"}, [query])).noise_multiplier * 900001 <= 2**20


@pytest.mark.parametrize("event", [
    dp_event.LaplaceDpEvent(1.0),
    dp_event.UnsupportedDpEvent(),
    dp_event.SampledWithReplacementDpEvent(100, 10, GAUSSIAN),
    dp_event.SingleEpochTreeAggregationDpEvent(1.0, 4),
    dp_event.RepeatAndSelectDpEvent(GAUSSIAN, 1.0, 1.0),
    dp_event.ZCDpEvent(0.1),
    dp_event.MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0], [0.5, 0.5]),
    dp_event.DiscreteLaplaceDpEvent(1.0, 1),
    dp_event.RandomizedResponseDpEvent(0.5, 2),
    dp_event.PoissonSampledDpEvent(0.1, dp_event.LaplaceDpEvent(1.0)),
    dp_event.PoissonSampledDpEvent(0.0, dp_event.LaplaceDpEvent(1.0)),
    dp_event.PoissonSampledDpEvent(0.1, dp_event.PoissonSampledDpEvent(0.1, GAUSSIAN)),
    dp_event.PoissonSampledDpEvent(1.1, GAUSSIAN),
    dp_event.PoissonSampledDpEvent(math.nan, GAUSSIAN),
    dp_event.GaussianDpEvent(-1.0),
    dp_event.GaussianDpEvent(math.nan),
    dp_event.GaussianDpEvent(math.inf),
    dp_event.SampledWithoutReplacementDpEvent(10, 11, GAUSSIAN),
    dp_event.SelfComposedDpEvent(GAUSSIAN, -1),
    dp_event.SelfComposedDpEvent(GAUSSIAN, 1.5),
    dp_event.ComposedDpEvent([GAUSSIAN, dp_event.LaplaceDpEvent(1.0)]),
])
def test_every_other_event_is_refused_by_name(event):
    culprits = [event, *getattr(event, "events", []), getattr(event, "event", event)]
    with pytest.raises(UnsupportedEvent) as refused:
        rounds(event)
    assert any(type(culprit).__name__ in str(refused.value) for culprit in culprits)
    accountant = VeilgradAccountant()
    assert not accountant.supports(event)
    with pytest.raises(dp.UnsupportedEventError, match="DpEvent"):
        accountant.compose(event)
    assert accountant.get_epsilon(1e-5) == 0


class Derived(dp_event.GaussianDpEvent):
    """Nobody knows what this means."""


def test_subclasses_of_events_are_refused():
    assert not VeilgradAccountant().supports(Derived(1.0))


def truncated(maximum, noise=1.1, records=60000, rate=256 / 60000):
    return dp_event.TruncatedSubsampledGaussianDpEvent(records, rate, maximum, noise)


def test_truncated_samples_cost_what_prototypes_found():
    """Of a prototype with a grid that adds about 0.009; Poisson samples cost 2.3796."""
    poisson = VeilgradAccountant(ZERO).compose(dp_event.PoissonSampledDpEvent(256 / 60000, GAUSSIAN), 14040).get_epsilon(1e-5)
    last = math.inf
    for maximum, prototype in ((319, 2.422), (335, 2.3890), (351, 2.3885), (60000, 2.3885)):
        accountant = VeilgradAccountant(ZERO)
        assert accountant.supports(truncated(maximum))
        epsilon = accountant.compose(truncated(maximum), 14040).get_epsilon(1e-5)
        assert prototype - 0.012 < epsilon < prototype + 1e-3, (maximum, epsilon)
        assert poisson * (1 - 1e-6) <= epsilon <= last
        last = epsilon
    # Without a cut it is the Poisson sample, in every relation.
    for relation, relative in ((ADD, None), (ZERO, None), (REPLACE, "clip-norm")):
        whole, sample = (
            VeilgradAccountant(relation, noise_relative_to=relative).compose(event, 100).get_epsilon(1e-5)
            for event in (truncated(200, 1.0, 200, 0.05), dp_event.PoissonSampledDpEvent(0.05, dp_event.GaussianDpEvent(1.0)))
        )
        assert whole == pytest.approx(sample, rel=1e-3)


def test_truncated_samples_are_never_below_the_lower_bound_and_near_those_of_dp_accounting():
    for maximum in (319, 335, 351):
        epsilon = VeilgradAccountant(ZERO).compose(truncated(maximum), 1000).get_epsilon(1e-5)
        peer = dp.pld.PLDAccountant(ZERO).compose(truncated(maximum), 1000).get_epsilon(1e-5)
        assert epsilon == pytest.approx(peer, rel=0.02), (maximum, epsilon, peer)


def test_truncated_samples_of_nothing_cost_nothing():
    accountant = VeilgradAccountant().compose(truncated(10, rate=0.0))
    assert accountant.get_epsilon(1e-5) == 0 and accountant.rounds() == []


def test_shuffled_batches_have_no_event():
    with pytest.raises(UnsupportedEvent, match="shuffle"):
        to_event(veilgrad.Round.shuffle(100, 10, 1.0))


def test_non_private_events_cost_everything():
    for event in (dp_event.NonPrivateDpEvent(), dp_event.GaussianDpEvent(0.0), dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(0.0))):
        accountant = VeilgradAccountant().compose(dp_event.ComposedDpEvent([GAUSSIAN, event]))
        assert accountant.get_epsilon(1e-5) == math.inf and accountant.get_delta(1.0) == 1
        with pytest.raises(veilgrad.Unsupported):
            accountant.rounds()


def test_nothing_costs_nothing():
    accountant = VeilgradAccountant().compose(dp_event.NoOpDpEvent()).compose(dp_event.PoissonSampledDpEvent(0.0, GAUSSIAN))
    assert accountant.get_epsilon(1e-5) == 0 and accountant.get_delta(0.0) == 0
    assert VeilgradAccountant().compose(GAUSSIAN).get_epsilon(0.0) == math.inf


@pytest.mark.parametrize("relation", [ADD, ZERO])
def test_epsilon_and_delta_agree_with_pld_accounting(relation):
    for rate, noise, count in ((0.01, 1.1, 1000), (0.5, 2.0, 20), (1.0, 5.0, 7)):
        event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
        ours = VeilgradAccountant(relation).compose(event, count)
        theirs = dp.pld.PLDAccountant(relation).compose(event, count)
        assert ours.get_epsilon(1e-5) == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-3)
        assert ours.get_epsilon(1e-5) <= theirs.get_epsilon(1e-5) * (1 + 1e-6)
        assert ours.get_delta(1.0) == pytest.approx(theirs.get_delta(1.0), rel=1e-2)
        assert ours.ledger == theirs.ledger
        # The same bits as the package's own function.
        assert ours.get_epsilon(1e-5) == veilgrad.epsilon(veilgrad.Round.poisson(rate, noise, count), 1e-5).epsilon


def test_replace_one_needs_to_know_what_noise_is_relative_to():
    for make in (VeilgradAccountant, lambda relation: rounds(GAUSSIAN, relation), lambda relation: to_event([], relation)):
        with pytest.raises(ValueError, match="noise_relative_to"):
            make(REPLACE)
    with pytest.raises(ValueError, match="REPLACE_ONE only"):
        VeilgradAccountant(ADD, noise_relative_to="replacement")
    # As PLDAccountant reads it...
    event = dp_event.PoissonSampledDpEvent(0.5, GAUSSIAN)
    clip = VeilgradAccountant(REPLACE, noise_relative_to="clip-norm").compose(event, 10)
    assert clip.get_epsilon(1e-5) == pytest.approx(dp.pld.PLDAccountant(REPLACE).compose(event, 10).get_epsilon(1e-5), rel=1e-3)
    # ... and as RdpAccountant does, which is an upper bound and close.
    replacement = VeilgradAccountant(REPLACE, noise_relative_to="replacement").compose(GAUSSIAN, 10)
    rdp = dp.rdp.RdpAccountant(neighboring_relation=REPLACE).compose(GAUSSIAN, 10)
    assert replacement.get_epsilon(1e-5) <= rdp.get_epsilon(1e-5) <= 1.1 * replacement.get_epsilon(1e-5)
    fixed = dp_event.SampledWithoutReplacementDpEvent(1000, 10, dp_event.GaussianDpEvent(2.0))
    replacement = VeilgradAccountant(REPLACE, noise_relative_to="replacement").compose(fixed, 100)
    rdp = dp.rdp.RdpAccountant(neighboring_relation=REPLACE).compose(fixed, 100)
    assert replacement.get_epsilon(1e-5) <= rdp.get_epsilon(1e-5)


def test_several_queries_of_one_sample_fold_to_one_gaussian():
    two = dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(2.0), dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(4.0), 4)])
    one = dp_event.GaussianDpEvent(1 / math.sqrt(1 / 4 + 4 / 16))
    folded, whole = (VeilgradAccountant().compose(dp_event.PoissonSampledDpEvent(0.1, event), 50).get_epsilon(1e-5) for event in (two, one))
    assert whole <= folded * (1 + 1e-9) and folded == pytest.approx(whole, rel=1e-6)


def test_thousands_of_steps_are_composed_one_by_one():
    accountant = VeilgradAccountant()
    for _ in range(3000):
        accountant.compose(dp_event.PoissonSampledDpEvent(0.01, GAUSSIAN))
    assert len(accountant.rounds()) == 1
    assert accountant.get_epsilon(1e-5) == veilgrad.epsilon(veilgrad.Round.poisson(0.01, 1.1, 3000), 1e-5).epsilon


def test_their_calibration_finds_our_noise():
    found = dp.calibrate_dp_mechanism(
        VeilgradAccountant,
        lambda noise: dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(noise)), 1000),
        target_epsilon=1.0, target_delta=1e-5, tol=1e-6)
    assert found == pytest.approx(veilgrad.calibrate(1.0, 1e-5, rate=0.01, rounds=1000).noise_multiplier, rel=1e-4)


class TestJaxPrivacy:
    def test_the_training_accountant_takes_ours(self):
        # Here, and not in the class, where it would skip the whole file.
        accounting = pytest.importorskip("jax_privacy.accounting")
        from veilgrad.jax_privacy import VeilgradAccountantConfig

        ours, theirs = (accounting.DpsgdTrainingAccountant(dp_accountant_config=config)
                        for config in (VeilgradAccountantConfig(), accounting.PldAccountantConfig()))
        for sampling in accounting.SamplingMethod:
            params = accounting.DpParams(noise_multipliers=1.1, num_samples=60000, delta=1e-5, batch_size=600, sampling_method=sampling)
            assert ours.compute_epsilon(500, params) == pytest.approx(theirs.compute_epsilon(500, params), rel=1e-3)
        found = accounting.calibrate_noise_multiplier(
            target_epsilon=2.0, accountant=ours, batch_sizes=600, num_updates=1000, num_samples=60000, target_delta=1e-5)
        assert found == pytest.approx(veilgrad.calibrate(2.0, 1e-5, rate=0.01, rounds=1000).noise_multiplier, rel=1e-2)

    @pytest.mark.parametrize(("rate", "bands", "noise", "count"), [
        (16 * 256 / 60000, 16, 0.9, 1172), (0.5, 64, 1.3, 500), (0.3, 16, 1.0, 17), (1.0, 8, 3.0, 100)])
    def test_cyclic_rounds_cost_what_their_event_of_banded_matrix_factorisation_costs(self, rate, bands, noise, count):
        pytest.importorskip("jax_privacy")
        from jax_privacy.experimental import accounting

        event = accounting.amplified_bandmf_event(noise, count, num_bands=bands, sampling_prob=rate)
        sampling = {"policy": "cyclic-poisson", "rate": rate, "groups": bands, "first_round": 0}
        cyclic = veilgrad.Round(sampling, [{"group": "gradient", "clip": 1.0, "noise": noise}], count)
        ours = veilgrad.epsilon(cyclic, 1e-5).epsilon
        assert ours == VeilgradAccountant().compose(event).get_epsilon(1e-5)
        # Their accountant rounds losses up, to a grid.
        theirs = dp.pld.PLDAccountant().compose(event).get_epsilon(1e-5)
        assert theirs * (1 - 1e-3) < ours < theirs * (1 + 1e-5)
