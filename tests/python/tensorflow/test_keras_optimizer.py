# SPDX-License-Identifier: Apache-2.0
"""hvd.tensorflow.keras.DistributedOptimizer, step by step: two ranks with gradients of their own do what one process does
with the average."""
import contextlib
import copy
import inspect
import warnings

import numpy as np
import pytest

from keras_ranks import assert_passed, cases_of, is_keras_3, launch

SHAPES = ((3, 2), (2,))


def gradients_of(rank, step):
    """What a rank's backward pass gives in a step: one array for each of SHAPES."""
    random = np.random.default_rng(100 * step + rank)
    return [random.normal(size=shape).astype("float32") for shape in SHAPES]


def mean_gradients(step, np_=2):
    return [sum(arrays) / np_ for arrays in zip(*(gradients_of(rank, step) for rank in range(np_)))]


def make_variables(keras):
    import tensorflow as tf
    values = [np.full(shape, 0.5, "float32") for shape in SHAPES]
    if is_keras_3(keras):
        return [keras.Variable(value, name=name) for value, name in zip(values, ("kernel", "bias"))]
    return [tf.Variable(value, name=name) for value, name in zip(values, ("kernel", "bias"))]


def steps(keras, optimizer, gradients, count=3):
    """Applies gradients(step) `count` times to new variables; their values."""
    import tensorflow as tf
    variables = make_variables(keras)
    for step in range(count):
        optimizer.apply_gradients([(tf.constant(grad), variable) for grad, variable in zip(gradients(step), variables)])
    return [variable.numpy() for variable in variables]


def assert_steps_alike(keras, hvd, make, count=3, rtol=1e-5, **options):
    """A distributed optimizer does with the ranks' gradients what a plain one does with their average."""
    expected = steps(keras, make(), mean_gradients, count)
    optimizer = hvd.DistributedOptimizer(make(), **options)
    found = steps(keras, optimizer, lambda step: gradients_of(hvd.rank(), step), count)
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-6, err_msg=str(type(optimizer)))
    return optimizer


def optimizers_of(module):
    return [value for _, value in inspect.getmembers(module, inspect.isclass)
            if issubclass(value, module.Optimizer) and value is not module.Optimizer
            and value.__name__ not in ("LossScaleOptimizer", "MultiOptimizer")]


# ---- every optimizer ----


def case_every_optimizer(keras, hvd):
    classes = optimizers_of(keras.optimizers)
    assert len(classes) >= 8
    for cls in classes:
        made = assert_steps_alike(keras, hvd, lambda cls=cls: cls(learning_rate=0.05))
        assert type(made).__name__ == cls.__name__ and isinstance(made, cls)
        assert int(made.iterations) == 3


def case_every_legacy_optimizer(keras, hvd):
    if is_keras_3(keras):
        pytest.skip("only Keras 2 has it")
    for cls in optimizers_of(keras.optimizers.legacy):
        made = assert_steps_alike(keras, hvd, lambda cls=cls: cls(learning_rate=0.05))
        assert type(made).__name__ == cls.__name__ and isinstance(made, cls)
        assert int(made.iterations) == 3
    assert_steps_alike(keras, hvd, lambda: keras.optimizers.legacy.SGD(0.1, global_clipnorm=0.2))


def case_a_multi_optimizer(keras, hvd):
    if not is_keras_3(keras):
        pytest.skip("only Keras 3 has it")

    def make():
        inner = {"kernel": keras.optimizers.Adam(0.05), "bias": keras.optimizers.SGD(0.1)}
        return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.1), inner))
    assert_steps_alike(keras, hvd, make)


# ---- what comes after the reduction ----


def case_clipping_comes_after_the_reduction(keras, hvd):
    for clip in ({"clipnorm": 0.3}, {"global_clipnorm": 0.3}, {"clipvalue": 0.1}):
        assert_steps_alike(keras, hvd, lambda clip=clip: keras.optimizers.SGD(0.1, **clip))


def case_weight_decay_averages_and_schedules_are_as_alone(keras, hvd):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, decay_steps=1, decay_rate=0.5)
    assert_steps_alike(keras, hvd, lambda: keras.optimizers.Adam(0.05, weight_decay=0.1))
    assert_steps_alike(keras, hvd, lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5,
                                                                ema_overwrite_frequency=2))
    assert_steps_alike(keras, hvd, lambda: keras.optimizers.SGD(schedule, momentum=0.9))


def scaled(keras, optimizer):
    """keras.mixed_precision.LossScaleOptimizer around it, beginning at 4."""
    return keras.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=4.0)


def case_loss_scaling_asks_reduced_gradients_for_infinities(keras, hvd):
    """A rank alone has an infinite gradient: no rank makes the step, all of them halve their scale."""
    import tensorflow as tf
    makers = [keras.optimizers.SGD] + ([] if is_keras_3(keras) else [keras.optimizers.legacy.SGD])
    for make in makers:
        for wrap in (lambda o: scaled(keras, hvd.DistributedOptimizer(o, op=hvd.Sum)),
                     lambda o: hvd.DistributedOptimizer(scaled(keras, o), op=hvd.Sum)):
            optimizer = wrap(make(0.25))
            variables = make_variables(keras)
            unscale = 1.0 if not is_keras_3(keras) else 4.0
            for step in range(3):
                grads = [np.full(shape, unscale, "float32") for shape in SHAPES]
                if step == 1 and hvd.rank() == 1:
                    grads[1][0] = np.inf
                optimizer.apply_gradients(zip(map(tf.constant, grads), variables))
            # Keras 3 unscales what it applies; its scale is 4 in the first step, and 2 in the third.
            expected = 0.5 - 0.25 * (2.0 + (4.0 if is_keras_3(keras) else 2.0))
            for variable in variables:
                np.testing.assert_allclose(variable.numpy(), np.full(variable.shape, expected), rtol=1e-6)
            scale = optimizer.dynamic_scale if is_keras_3(keras) else optimizer.loss_scale
            assert float(np.asarray(scale)) == 2.0


# ---- arguments ----


def case_arguments(keras, hvd):
    def make():
        return keras.optimizers.SGD(0.1)

    for options in ({"gradient_predivide_factor": 2.0}, {"groups": 1}, {"groups": 2}, {"name": "mine"},
                    {"sparse_as_dense": True}, {"process_set": hvd.global_process_set}, {"device_dense": "/cpu:0"}):
        assert_steps_alike(keras, hvd, make, **options)
    assert_steps_alike(keras, hvd, make, rtol=1e-2, compression=hvd.Compression.fp16)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert_steps_alike(keras, hvd, make, num_groups=2)
    assert any("num_groups" in str(one.message) for one in said)
    summed = hvd.DistributedOptimizer(make(), op=hvd.Sum)
    doubled = steps(keras, keras.optimizers.SGD(0.2), mean_gradients)
    for one, other in zip(steps(keras, summed, lambda step: gradients_of(hvd.rank(), step)), doubled):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def case_groups_of_variables(keras, hvd):
    import tensorflow as tf
    variables = make_variables(keras)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), groups=[variables[:1]])
    optimizer.apply_gradients([(tf.constant(grad), variable)
                               for grad, variable in zip(gradients_of(hvd.rank(), 0), variables)])
    for variable, grad in zip(variables, mean_gradients(0)):
        np.testing.assert_allclose(variable.numpy(), 0.5 - 0.1 * grad, rtol=1e-5)


def case_a_process_set(keras, hvd):
    """A rank that is alone in its set, and one outside of it, use their own gradients."""
    alone = hvd.add_process_set([1])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), process_set=alone)
    found = steps(keras, optimizer, lambda step: gradients_of(hvd.rank(), step), 1)
    for value, grad in zip(found, gradients_of(hvd.rank(), 0)):
        np.testing.assert_allclose(value, 0.5 - 0.1 * grad, rtol=1e-5)
    assert hvd.remove_process_set(alone)


def case_indexed_slices(keras, hvd):
    import tensorflow as tf
    for options in ({}, {"sparse_as_dense": True}):
        variable = make_variables(keras)[0]
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **options)
        rows = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([0, 1 + hvd.rank()]), tf.constant([3, 2]))
        optimizer.apply_gradients([(rows, variable)])
        np.testing.assert_allclose(variable.numpy(), [[-0.5, -0.5], [0, 0], [0, 0]])


def case_local_variables(keras, hvd):
    import tensorflow as tf
    for scale in (True, False):
        variables = make_variables(keras)
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), scale_local_gradients=scale)
        optimizer.register_local_var(variables[1])
        optimizer.apply_gradients([(tf.constant(grad), variable)
                                   for grad, variable in zip(gradients_of(hvd.rank(), 0), variables)])
        local = gradients_of(hvd.rank(), 0)[1] / (2 if scale else 1)
        np.testing.assert_allclose(variables[0].numpy(), 0.5 - 0.1 * mean_gradients(0)[0], rtol=1e-5)
        np.testing.assert_allclose(variables[1].numpy(), 0.5 - 0.1 * local, rtol=1e-5)


def case_no_gradient(keras, hvd):
    import tensorflow as tf
    variables = make_variables(keras)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer.apply_gradients([(None, variables[0]), (tf.constant(gradients_of(hvd.rank(), 0)[1]), variables[1])])
    np.testing.assert_allclose(variables[0].numpy(), np.full(SHAPES[0], 0.5))
    np.testing.assert_allclose(variables[1].numpy(), 0.5 - 0.1 * mean_gradients(0)[1], rtol=1e-5)


# ---- gradients of several passes ----


def _accumulated(keras, hvd, make, average, in_function, sparse):
    import tensorflow as tf
    variables = make_variables(keras)
    optimizer = hvd.DistributedOptimizer(make(), backward_passes_per_step=3, average_aggregated_gradients=average,
                                         sparse_as_dense=sparse)

    def apply(*grads):
        grads = list(grads)
        if sparse:
            grads[0] = tf.IndexedSlices(grads[0], tf.constant([0, 1, 2]), tf.constant(SHAPES[0]))
        optimizer.apply_gradients(zip(grads, variables))

    call = tf.function(apply) if in_function else apply
    for step in range(7):
        call(*map(tf.constant, gradients_of(hvd.rank(), step)))
        assert int(optimizer.iterations) == step + 1
    assert int(optimizer._agg_helper.counter) == 7 % 3
    plain = make()
    expected = steps(keras, plain, lambda step: [sum(arrays) / (3 if average else 1) for arrays in
                                                 zip(*(mean_gradients(3 * step + part) for part in range(3)))], 2)
    for variable, value in zip(variables, expected):
        np.testing.assert_allclose(variable.numpy(), value, rtol=1e-5, atol=1e-6)


def case_accumulation(keras, hvd):
    makers = [lambda: keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=1.0)]
    if not is_keras_3(keras):
        makers.append(lambda: keras.optimizers.legacy.SGD(0.1, momentum=0.9, global_clipnorm=1.0))
    for make in makers:
        for average, in_function, sparse in ((True, True, False), (False, True, True), (True, False, True)):
            _accumulated(keras, hvd, make, average, in_function, sparse)


def case_accumulation_of_slices_needs_sparse_as_dense(keras, hvd):
    import tensorflow as tf
    variable = make_variables(keras)[0]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    with pytest.raises(ValueError, match="sparse_as_dense"):
        optimizer.apply_gradients([(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([3, 2])), variable)])


def _applying(optimizer, variables):
    def apply(*grads):
        optimizer.apply_gradients(zip(grads, variables))
    return apply


def case_accumulation_and_loss_scaling(keras, hvd):
    """An infinity in one pass of one rank costs one step, on all ranks."""
    import tensorflow as tf
    for wrap in (lambda o: scaled(keras, hvd.DistributedOptimizer(o, backward_passes_per_step=2)),
                 lambda o: hvd.DistributedOptimizer(scaled(keras, o), backward_passes_per_step=2)):
        optimizer = wrap(keras.optimizers.SGD(1.0))
        variables = make_variables(keras)

        call = tf.function(_applying(optimizer, variables))
        for step in range(4):
            grads = [np.full(shape, 2.0, "float32") for shape in SHAPES]
            if step == 0 and hvd.rank() == 0:
                grads[0][0, 0] = np.nan
            call(*map(tf.constant, grads))
        # Two gradients of 2 are one of 4; Keras 3 divides by the scale, which went from 4 to 2.
        np.testing.assert_allclose(variables[0].numpy(), np.full(SHAPES[0], 0.5 - (2.0 if is_keras_3(keras) else 4.0)))
        scale = optimizer.dynamic_scale if is_keras_3(keras) else optimizer.loss_scale
        assert float(np.asarray(scale)) == 2.0


# ---- other ways in ----


def case_minimize_and_gradients_given_out(keras, hvd):
    """Keras 2: what was given out reduced is not reduced again, which with Sum would be seen."""
    import tensorflow as tf
    if is_keras_3(keras):
        pytest.skip("only Keras 2 has it")
    for make in (keras.optimizers.SGD, keras.optimizers.legacy.SGD):
        factor = tf.constant(hvd.rank() + 1.0)
        variable = tf.Variable([1.0])
        optimizer = hvd.DistributedOptimizer(make(1.0), op=hvd.Sum)
        optimizer.minimize(lambda: factor * variable, [variable])
        np.testing.assert_allclose(variable.numpy(), [-2.0])
    for flag in (True, False):
        variable = tf.Variable([1.0])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.legacy.SGD(1.0), op=hvd.Sum)
        given = optimizer._compute_gradients(lambda: factor * variable, [variable])
        np.testing.assert_allclose(given[0][0].numpy(), [3.0])
        optimizer.apply_gradients(given, experimental_aggregate_gradients=flag)
        np.testing.assert_allclose(variable.numpy(), [-2.0])
    for wrap in (lambda o: scaled(keras, hvd.DistributedOptimizer(o, op=hvd.Sum)),
                 lambda o: hvd.DistributedOptimizer(scaled(keras, o), op=hvd.Sum)):
        variable = tf.Variable([1.0])
        wrap(keras.optimizers.legacy.SGD(1.0)).minimize(lambda: factor * variable, [variable])
        np.testing.assert_allclose(variable.numpy(), [-2.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
    given = optimizer._compute_gradients(lambda: factor * variable, [variable])
    np.testing.assert_allclose(given[0][0].numpy(), [3.0])
    optimizer.apply_gradients(given)
    np.testing.assert_allclose(variable.numpy(), [-5.0])
    given = optimizer.aggregate_gradients([(factor * tf.ones([1]), variable)])
    optimizer.apply_gradients(given, skip_gradients_aggregation=True)
    np.testing.assert_allclose(variable.numpy(), [-8.0])
    optimizer.apply_gradients([(factor * tf.ones([1]), variable)], skip_gradients_aggregation=True)
    np.testing.assert_allclose(variable.numpy(), [-9.0 - hvd.rank()])


def case_get_gradients_in_a_graph(keras, hvd):
    import tensorflow as tf
    if is_keras_3(keras):
        pytest.skip("only Keras 2 has it")
    backend = getattr(keras, "src", keras).backend if hasattr(keras, "src") else tf.compat.v1.keras.backend
    with tf.Graph().as_default(), tf.compat.v1.Session().as_default() as session:
        variable = tf.compat.v1.get_variable("v", initializer=[1.0], use_resource=True)
        with contextlib.suppress(AttributeError):
            backend.set_session(session)
        optimizer = hvd.DistributedOptimizer(keras.optimizers.legacy.SGD(1.0), op=hvd.Sum)
        loss = (hvd.rank() + 1.0) * variable
        given = optimizer.get_gradients(loss, [variable])
        step = optimizer.apply_gradients(zip(given, [variable]))
        session.run(tf.compat.v1.global_variables_initializer())
        np.testing.assert_allclose(session.run(given[0]), [3.0])
        session.run(step)
        np.testing.assert_allclose(session.run(variable), [-2.0])


def case_accumulation_in_a_graph(keras, hvd):
    import tensorflow as tf
    if is_keras_3(keras):
        pytest.skip("only Keras 2 has it")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", initializer=[1.0], use_resource=True)
        fed = tf.compat.v1.placeholder(tf.float32, [1])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.legacy.SGD(1.0), backward_passes_per_step=2,
                                             average_aggregated_gradients=True)
        step = optimizer.apply_gradients([(fed, variable)])
        session.run(tf.compat.v1.global_variables_initializer())
        for value, expected in ((1.0, 1.0), (3.0, -1.5), (5.0, -1.5), (5.0, -7.0)):
            session.run(step, {fed: [value + hvd.rank()]})
            np.testing.assert_allclose(session.run(variable), [expected])
        assert session.run(optimizer.iterations) == 4


def case_apply_with_what_it_was_built_for(keras, hvd):
    import tensorflow as tf
    if not is_keras_3(keras):
        pytest.skip("only Keras 3 has it")
    variables = make_variables(keras)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    with pytest.raises(ValueError, match="must already be built"):
        optimizer.apply([tf.constant(grad) for grad in gradients_of(hvd.rank(), 0)])
    optimizer.build(variables)
    optimizer.apply([tf.constant(grad) for grad in gradients_of(hvd.rank(), 0)])
    for variable, grad in zip(variables, mean_gradients(0)):
        np.testing.assert_allclose(variable.numpy(), 0.5 - 0.1 * grad, rtol=1e-5)
    optimizer.apply([])


def case_keras_own_accumulation(keras, hvd):
    if not is_keras_3(keras):
        pytest.skip("only Keras 3 has it")
    assert_steps_alike(keras, hvd, lambda: keras.optimizers.Adam(0.1, gradient_accumulation_steps=2), count=4)


# ---- state, configuration, mistakes ----


def case_an_optimizer_keeps_its_state(keras, hvd):
    import tensorflow as tf
    plain = keras.optimizers.Adam(0.05)
    variables = make_variables(keras)
    plain.apply_gradients([(tf.constant(grad), variable) for grad, variable in zip(mean_gradients(0), variables)])
    plain.learning_rate = 0.125
    made = hvd.DistributedOptimizer(plain)
    assert int(made.iterations) == 1 and float(np.asarray(made.learning_rate)) == 0.125
    made.apply_gradients([(tf.constant(grad), variable)
                          for grad, variable in zip(gradients_of(hvd.rank(), 1), variables)])
    alone = keras.optimizers.Adam(0.05)
    expected = make_variables(keras)
    for step in range(2):
        alone.learning_rate = (0.05, 0.125)[step]
        alone.apply_gradients([(tf.constant(grad), variable) for grad, variable in zip(mean_gradients(step), expected)])
    for one, other in zip(variables, expected):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5)


def case_variables_may_be_called(keras, hvd):
    """hvd.broadcast_variables(optimizer.variables(), 0) is what scripts for Keras 2 say."""
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9))
    optimizer.build(make_variables(keras))
    listed = optimizer.variables
    assert len(listed) >= 1 + len(SHAPES)
    assert [id(variable) for variable in optimizer.variables()] == [id(variable) for variable in listed]


def case_configuration_goes_round(keras, hvd):
    def optimizer():
        return keras.optimizers.SGD(0.05, momentum=0.9, clipnorm=100.0)  # Adam steps as far on half the gradient
    plain = optimizer()
    made = hvd.DistributedOptimizer(plain, op=hvd.Sum)
    assert made.get_config() == plain.get_config()
    alone = steps(keras, optimizer(), lambda step: [np.full(shape, 0.2, "float32") for shape in SHAPES], 1)
    for again in [type(made).from_config(made.get_config())] + ([copy.deepcopy(made)] if is_keras_3(keras) else []):
        assert again.get_config() == made.get_config()
        summed = steps(keras, again, lambda step: [np.full(shape, 0.1, "float32") for shape in SHAPES], 1)
        np.testing.assert_allclose(summed[0], alone[0], rtol=1e-5)
    assert keras.optimizers.serialize(made) == keras.optimizers.serialize(plain)


def case_mistakes_are_said(keras, hvd):
    import tensorflow as tf
    sgd = keras.optimizers.SGD(0.1)
    for options, text in (({"op": 3}, "op currently only supports Average and Sum"),
                          ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "gradient_predivide_factor not supported"),
                          ({"groups": -1}, "groups should be"), ({"backward_passes_per_step": 0}, "must be > 0")):
        with pytest.raises(ValueError, match=text):
            hvd.DistributedOptimizer(sgd, **options)
    for twice in (hvd.DistributedOptimizer(sgd), scaled(keras, hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))):
        with pytest.raises(ValueError, match="distributed already"):
            hvd.DistributedOptimizer(twice)
    for wrong in ("sgd", None, tf.compat.v1.train.GradientDescentOptimizer(0.1)):
        with pytest.raises(TypeError, match="takes an optimizer of Keras"):
            hvd.DistributedOptimizer(wrong)
    with pytest.raises(ValueError, match="All local layers must be"):
        hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=[3])
    with pytest.raises(ValueError, match="no variables yet"):
        hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=keras.layers.Dense(3))


def case_ranks_that_disagree_hear_of_it(keras, hvd):
    import tensorflow as tf
    variable = tf.Variable(np.zeros(2 + hvd.rank(), "float32"))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    with pytest.raises(Exception, match="Mismatched"):
        optimizer.apply_gradients([(tf.ones(2 + hvd.rank()), variable)])


CASES = cases_of(globals())
OF_ANOTHER = ["every_optimizer", "loss_scaling_asks_reduced_gradients_for_infinities", "accumulation", "mistakes_are_said"]


@pytest.fixture(scope="module")
def failed():
    """What failed of all cases, on two ranks."""
    return launch(2, __file__, CASES, OF_ANOTHER)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks(failed, case):
    assert_passed(failed, case)


NAMES = """DistributedOptimizer PartialDistributedOptimizer broadcast_global_variables allreduce allgather broadcast
    reducescatter load_model callbacks elastic Compression init shutdown is_initialized start_timeline stop_timeline size
    local_size cross_size rank local_rank cross_rank mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built
    nccl_built ddl_built ccl_built cuda_built rocm_built ProcessSet global_process_set add_process_set
    remove_process_set Average Sum""".split()
_SPARSE = "compression=None sparse_as_dense=False gradient_predivide_factor=1.0 op=0"
_REST = "process_set=ALL scale_local_gradients=True"
SIGNATURES = {
    "DistributedOptimizer": f"optimizer name=None device_dense='' device_sparse='' {_SPARSE} backward_passes_per_step=1 "
                            f"average_aggregated_gradients=False num_groups=0 groups=None {_REST}",
    "PartialDistributedOptimizer":
        f"optimizer name=None device_dense='' device_sparse='' {_SPARSE} backward_passes_per_step=1 "
        "average_aggregated_gradients=False groups=None process_set=ALL local_layers=None scale_local_gradients=True",
    "broadcast_global_variables": "root_rank",
    "allreduce": "value name=None average=None prescale_factor=1.0 postscale_factor=1.0 op=None compression=None",
    "allgather": "value name=None", "broadcast": "value root_rank name=None", "reducescatter": "value name=None op=0",
    "load_model": "filepath custom_optimizers=None custom_objects=None compression=None legacy_opts=False",
}
OF_KERAS = dict(SIGNATURES, DistributedOptimizer=f"optimizer name=None device_dense='' device_sparse='' {_SPARSE} "
                f"num_groups=0 groups=None backward_passes_per_step=1 average_aggregated_gradients=False {_REST}")


def signature_of(function):
    from hvd.process_sets import global_process_set
    return " ".join(p.name if p.default is p.empty else
                    f"{p.name}={'ALL' if p.default is global_process_set else repr(p.default)}"
                    for p in inspect.signature(function).parameters.values())


def test_names_and_signatures_are_horovods():
    """`compression` None stands for Compression.none; what horovod.keras has not comes last there."""
    import hvd.keras
    import hvd.tensorflow.keras
    for module, signatures in ((hvd.tensorflow.keras, SIGNATURES), (hvd.keras, OF_KERAS)):
        assert [name for name in NAMES if not hasattr(module, name)] == []
        for name, expected in signatures.items():
            assert signature_of(getattr(module, name)) == expected, (module, name)
