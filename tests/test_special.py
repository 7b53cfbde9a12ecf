"""`hf.special`: values and derivatives against mpmath, ends of domains, precision where libraries have less."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.special

import hybridflow as hf

special = hf.special
ONE: dict[str, list[tuple[float, float, float, float]]] = {
    "gammaln": [
        (0.3, 1.0957979948180756, -3.502524222200133, 12.245364546107732),
        (2.5, 0.2846828704729192, 0.7031566406452432, 0.49035775610023485),
        (40.0, 106.63176026064346, 3.676327374034843, 0.02531510384129103),
    ],
    "digamma": [
        (0.3, -3.502524222200133, 12.245364546107732, -75.27253658872604),
        (2.5, 0.7031566406452432, 0.49035775610023485, -0.2362040516417274),
        (40.0, 3.676327374034843, 0.02531510384129103, -0.0006408202718352986),
    ],
    "erfc": [
        (-1.3, 1.9340079449406524, -0.20820798679606967, -0.5413407656697811),
        (0.4, 0.5716076449533315, -0.9615412988393077, 0.7692330390714462),
        (3.0, 2.209049699858544e-05, -0.00013925305194674786, 0.0008355183116804871),
    ],
    "erfcx": [
        (-1.3, 10.481318741176324, -28.379807894153956, 94.75013800715293),
        (0.4, 0.6707877852947615, -0.5917489388597034, 0.8681764195017603),
        (3.0, 0.17900115118138996, -0.05437226000717287, 0.03176874231974267),
        (20.0, 0.02817434874105132, -0.0014052174534598012, 0.00013999934371059262),
    ],
    "erfinv": [
        (-0.9, -1.1630871536766743, 3.428042811451841, -27.33598507382704),
        (0.25, 0.2253120550121781, 0.9323782346059726, 0.391740684616067),
        (0.999, 2.3267537655135246, 198.9395177644842, 184171.54985313196),
    ],
    "erfcinv": [
        (0.05, 1.385903824349678, -6.049327886384238, 101.43254878074782),
        (0.9, 0.08885599049425767, -0.8932517253051876, 0.14179614878847463),
        (1.7, -0.7328690779592167, -1.5163632173337642, -3.370255885361794),
    ],
    "ndtr": [
        (-3.0, 0.0013498980316300946, 0.0044318484119380075, 0.013295545235814022),
        (0.4, 0.6554217416103242, 0.3682701403033233, -0.14730805612132933),
        (2.0, 0.9772498680518208, 0.05399096651318805, -0.1079819330263761),
    ],
    "log_ndtr": [
        (-20.0, -203.91715537109727, 20.04975306852785, -0.9975367383849478),
        (-0.4, -1.0654340491895766, 1.0687561717456209, -0.7147372859461067),
        (3.0, -0.0013508099647481938, 0.004437839042125664, -0.013333211541740806),
    ],
    "ndtri": [
        (0.02, -2.053748910631823, 20.653418018055998, -876.0546845480144),
        (0.4, -0.2533471031357997, 2.588376669140744, -1.697348011402495),
        (0.9, 1.2815515655446006, 5.6980598561170055, 41.609270291997795),
    ],
    "expit": [
        (-3.0, 0.04742587317756678, 0.04517665973091213, 0.04089157466094348),
        (0.4, 0.598687660112452, 0.24026074574152914, -0.04742154162820856),
        (9.0, 0.9998766054240138, 0.0001233793497648489, -0.00012334890107974954),
    ],
    "logit": [
        (0.02, -3.8918202981106265, 51.020408163265344, -2498.958767180354),
        (0.45, -0.2006706954621511, 4.040404040404041, -1.632486480971329),
        (0.9, 2.1972245773362196, 11.111111111111114, 98.7654320987655),
    ],
    "entr": [
        (0.02, 0.07824046010856292, 2.9120230054281464, -50.000000000000085),
        (0.45, 0.3593284632979972, -0.2014923037822284, -2.2222222222222223),
        (3.0, -3.295836866004329, -2.0986122886681096, -0.3333333333333333),
    ],
    "i0": [
        (-3.0, 4.8807925858650245, -3.9533702174026093, 3.5630025133974876),
        (0.4, 1.0404017822293412, 0.2040267557335706, 0.5303348928954148),
        (9.0, 1093.5883545113747, 1030.9147225169565, 979.0422742317129),
    ],
    "i1": [
        (-3.0, -3.9533702174026093, 3.5630025133974876, -3.204966070425959),
        (0.4, 0.2040267557335706, 0.5303348928954148, 0.15335674682984995),
        (9.0, 1030.9147225169565, 979.0422742317129, 934.8595898556174),
    ],
    "i0e": [
        (-3.0, 0.2430003541618254, 0.046173640864524544, 0.026738377296615472),
        (0.4, 0.6974021705595331, -0.560638946263704, 0.779369831787835),
        (9.0, 0.134959524581723, -0.007734540645831808, 0.0013329719654534816),
    ],
    "i1e": [
        (-3.0, -0.19682671329730086, -0.01943526356790907, -0.0016096787034987584),
        (0.4, 0.13676322429582918, 0.21873088552413106, -0.4714268937492304),
        (9.0, 0.1272249839358912, -0.0064015686803783264, 0.0009489922575007919),
    ],
    "exp1": [
        (0.1, 1.8229239584193906, -9.048374180359595, 99.53211598395556),
        (1.5, 0.10001958240663265, -0.14875344009895322, 0.24792240016492204),
        (9.0, 1.2447354178006272e-05, -1.3712200454075505e-05, 1.5235778282306117e-05),
    ],
    "expi": [
        (-2.0, -0.04890051070806112, -0.06766764161830635, -0.10150146242745951),
        (0.7, 1.0649071946242905, 2.8767895821006806, -1.232909820900292),
        (9.0, 1037.8782907170896, 900.3426586194871, 800.3045854395441),
    ],
    "spence": [
        (0.2, 1.0747946000082484, -2.0117973905426254, 3.735253261821718),
        (0.9, 0.1026177910993911, -1.053605156578263, 0.575059545328481),
        (1.0, 0.0, -1.0, 0.5),
        (5.0, -2.369939796998366, -0.40235947810852507, 0.05058986952713127),
    ],
    "sinc": [
        (0.0, 1.0, 0.0, -3.289868133696453),
        (0.3, 0.8583936913341398, -0.9020281301388888, -2.4584852862661744),
        (2.5, 0.12732395447351627, -0.05092958178940651, -1.215893396004392),
    ],
}
"""Arguments, values, first and second derivatives, computed by mpmath 1.4 with 40 digits."""
SEVERAL: dict[str, list[tuple[Any, float, list[float], list[float]]]] = {
    "xlogy": [
        ((0.5, 2.0), 0.34657359027997264, [0.6931471805599453, 0.25], [0.0, 0.5, -0.125]),
        ((3.0, 0.2), -4.828313737302301, [-1.6094379124341003, 15.0], [0.0, 5.0, -74.99999999999999]),
    ],
    "xlog1py": [
        ((0.5, 2.0), 0.5493061443340549, [1.0986122886681098, 0.16666666666666666], [0.0, 0.3333333333333333,
         -0.05555555555555555]),
        ((3.0, -0.2), -0.6694306539426294, [-0.22314355131420976, 3.75], [1.0206407629923909e-178, 1.25, -4.6875]),
    ],
    "rel_entr": [
        ((0.5, 0.4), 0.11157177565710485, [1.2231435513142097, -1.25], [2.0, -2.5, 3.1249999999999996]),
        ((3.0, 0.2), 8.12415060330663, [3.70805020110221, -15.0], [0.3333333333333333, -5.0, 74.99999999999999]),
    ],
    "kl_div": [
        ((0.5, 0.4), 0.011571775657104872, [0.2231435513142097, -0.24999999999999994], [2.0, -2.5,
         3.1249999999999996]),
        ((3.0, 0.2), 5.32415060330663, [2.70805020110221, -14.0], [0.3333333333333333, -5.0, 74.99999999999999]),
    ],
    "zeta": [
        ((1.5, 0.5), 4.776537947554833, [-2.0682093782329916, -9.370665951853217], [17.367324145816404,
         -11.43144097317088, 43.578017487907104]),
        ((4.0, 3.0), 0.019823233711138193, [-0.025589567111128798, -0.022711020573479707], [0.03502984799799307,
         0.02197396932448871, 0.034361239688982796]),
    ],
    "beta": [
        ((0.5, 3.0), 1.0666666666666667, [-3.2711111111111113, -0.1923971259165611], [14.942814814814815,
         0.23763624630387023, 0.10358451131333452]),
        ((12.0, 2.0), 0.00641025641025641, [-0.001027284681130835, -0.013975216379062533], [0.00024707513612839054,
         0.0017650009026445705, 0.03412741659267836]),
    ],
    "betaln": [
        ((0.5, 3.0), 0.06453852113757118, [-3.066666666666667, -0.18037230554677605], [4.604444444444445,
         -0.3303577561002349, 0.06457631074799157]),
        ((12.0, 20.0), -21.25003152024193, [-1.0073678505591752, -0.4795055382928382], [0.055158506351466303,
         -0.03174336652030209, 0.01952745641490103]),
    ],
    "gammainc": [
        ((0.5, 0.2), 0.4729107431344619, [-0.8201614064863388, 1.0328830949345567], [1.0339378610953087,
         0.3657151005120942, -3.615090832270948]),
        ((3.0, 7.0), 0.9703638361194782, [-0.034996415852200244, 0.022341108156085646], [-0.03016921901326538,
         0.02285776446689306, -0.015957934397204034]),
        ((20.0, 15.0), 0.12478121503252482, [-0.04851376809420051, 0.05574707333475279], [0.014025100129319519,
         -0.014632145683128765, 0.014865886222600743]),
    ],
    "gammaincc": [
        ((0.5, 0.2), 0.5270892568655381, [0.8201614064863388, -1.0328830949345567], [-1.0339378610953087,
         -0.3657151005120942, 3.615090832270948]),
        ((3.0, 7.0), 0.029636163880521777, [0.034996415852200244, -0.022341108156085646], [0.03016921901326538,
         -0.02285776446689306, 0.015957934397204034]),
        ((20.0, 15.0), 0.8752187849674752, [0.04851376809420051, -0.05574707333475279], [-0.014025100129319519,
         0.014632145683128765, -0.014865886222600743]),
    ],
    "betainc": [
        ((0.5, 2.0, 0.3), 0.7394254526319742, [-0.5068423455416763, 0.13315103712235118, 0.9585144756340407],
         [0.1486142556264991, 0.1636481506581944, 1.4020132404746553, -0.08305166087877408, -0.07313718342775984,
         -2.96683051981965]),
        ((8.0, 3.0, 0.9), 0.9298091736, [-0.018328740143873326, 0.08826845167500146, 1.7218688399999995],
         [-0.002154738122669577, 0.016916158965389845, 0.39732226012245675, -0.09950623853897018,
         -1.5042536132178066, -21.045063600000002]),
    ],
    "polygamma": [
        ((0, 2.5), 0.7031566406452432, [0.49035775610023485], [-0.2362040516417274]),
        ((1, 0.3), 12.245364546107732, [-75.27253658872604], [743.1417646550498]),
        ((2, 2.5), -0.2362040516417274, [0.22390584881725206], [-0.3137559995067314]),
        ((3, -1.4), 283.34389027483365, [2037.019694440706], [31892.444144804093]),
    ],
    "multigammaln": [
        ((3.2, 3), 3.134267676374753, [2.339915497018886], [1.386466020629059]),
        ((9.0, 2), 20.726235102970946, [4.22073229553503], [0.24235013361295746]),
    ],
}
"""The same of several arguments: the second derivatives are those of pairs, in order, by numbers in tensors only."""
COMPILES = ("zeta", "gammainc", "gammaincc", "betainc")
"""Their second derivatives take seconds to compile."""


def f64(x: Any) -> Any:
    return hf.asarray(np.asarray(x, np.float64))


def near(found: Any, expected: Any, rtol: float = 1e-11) -> None:
    np.testing.assert_allclose(np.asarray(found), expected, rtol=rtol, atol=rtol)


def ways(function: Any) -> tuple[Any, ...]:
    return function, hf.compile(function)


def slope(function: Any, index: int = 0) -> Any:
    return hf.grad(lambda *xs: hf.sum(function(*xs)), argnums=index)


@pytest.mark.parametrize("name", ONE)
def test_one_argument_against_mpmath(name: str) -> None:
    x, *orders = np.array(ONE[name]).T
    function = getattr(special, name)
    for expected in orders:
        near(function(f64(x)), expected)
        function = slope(function)


@pytest.mark.rest
def test_one_argument_compiled_against_mpmath() -> None:
    functions = {name: getattr(special, name) for name in ONE}

    def everything(xs: dict[str, Any]) -> dict[str, Any]:
        orders = {name: (one, slope(one), slope(slope(one))) for name, one in functions.items()}
        return {name: [order(xs[name]) for order in some] for name, some in orders.items()}

    found = hf.compile(everything)({name: f64([row[0] for row in rows]) for name, rows in ONE.items()})
    for name, rows in ONE.items():
        for one, expected in zip(found[name], np.array(rows).T[1:], strict=True):
            near(one, expected)


def of_tensors(name: str, arguments: Any) -> tuple[Any, list[Any]]:
    """Return a function of the arguments that are tensors, and these."""
    if name == "polygamma":
        return lambda x: special.polygamma(arguments[0], x), [f64(arguments[1])]
    if name == "multigammaln":
        return lambda a: special.multigammaln(a, arguments[1]), [f64(arguments[0])]
    return getattr(special, name), [f64(one) for one in arguments]


@pytest.mark.parametrize("name", SEVERAL)
def test_several_arguments_against_mpmath(name: str) -> None:
    for arguments, value, _, _ in SEVERAL[name]:
        function, xs = of_tensors(name, arguments)
        near(function(*xs), value)
        near(hf.compile(function)(*xs), value)


@pytest.mark.parametrize("name", [name for name in SEVERAL if name not in COMPILES])
def test_derivatives_by_several_arguments(name: str) -> None:
    derivatives(name)


@pytest.mark.rest
@pytest.mark.parametrize("name", COMPILES)
def test_derivatives_by_parameters(name: str) -> None:
    derivatives(name)


def derivatives(name: str) -> None:
    for arguments, _, first, second in SEVERAL[name]:
        function, xs = of_tensors(name, arguments)
        near([slope(function, i)(*xs).item() for i in range(len(xs))], first, 1e-9)
        pairs = itertools.combinations_with_replacement(range(len(xs)), 2)
        near([slope(slope(function, i), k)(*xs).item() for i, k in pairs], second, 1e-9)


@pytest.mark.rest
def test_inverses_of_incomplete_functions_undo_them() -> None:
    a, b, x = f64([0.4, 3.0, 25.0]), f64([2.0, 0.7, 9.0]), f64([0.2, 0.5, 0.6])

    def gamma(a: Any, x: Any) -> Any:
        return special.gammaincinv(a, special.gammainc(a, x))

    def beta(a: Any, b: Any, x: Any) -> Any:
        return special.betaincinv(a, b, special.betainc(a, b, x))

    for function, xs in ((gamma, (a, a * x)), (beta, (a, b, x))):
        for run in ways(function):
            near(run(*xs), xs[-1], 1e-10)
        for index in range(len(xs)):
            near(slope(function, index)(*xs), [float(index == len(xs) - 1)] * 3, 1e-7)
            near(slope(slope(function, index), index)(*xs), [0.0] * 3, 1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_quantiles_of_extreme_parameters_are_the_same_in_both_modes(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = np.exp(rng.uniform(np.log(1e-3), np.log(1e6), (2, 2000)))
    y = np.where(rng.random(2000) < 0.5, rng.uniform(0, 1, 2000), 10 ** rng.uniform(-30, 0, 2000))
    by_scipy_wrong = [[1.01643, 0.00338138, 4.38016e-20], [1.58955, 0.446736, 6.25942e-28]]
    rows = np.concatenate([np.stack([a, b, y], 1), [[0.01, 5e8, 0.885]], by_scipy_wrong]).T.astype(dtype)
    eager, compiled = [run(*map(hf.asarray, rows)).numpy() for run in ways(special.betaincinv)]
    tiny = float(np.finfo(dtype).tiny)
    np.testing.assert_allclose(compiled, eager, rtol=32768 * np.finfo(dtype).eps, atol=2 * tiny)
    np.testing.assert_allclose(eager[-3:], [5.600556e-15, 2.4672692e-17, 1.4595316e-17], rtol=1e-3)
    far = hf.asarray(np.array([[5.611508846282959, 278555168.0, 2.398265408487532e-08]], dtype).T)
    eager, compiled = [run(*far).numpy() for run in ways(special.betainc)]
    np.testing.assert_allclose(compiled, eager, rtol=1e-4)


@pytest.mark.parametrize(("function", "arguments", "expected"), [
    (special.log_ndtr, (5.0,), -2.866516129637636e-07), (special.erfinv, (0.9999999,), 3.7665625816384707),
    (special.betaln, (17.81, 0.3235), 0.09127714822807129), (special.gammainc, (1e6, 1e6 + 1e3), 0.8413447863683403),
    (special.kl_div, (1.0, 1.000001), 4.999996665846501e-13), (special.logit, (0.5 + 1e-9,), 3.999999886872274e-09),
    (special.digamma, (-50.3,), 6.210413167857633), (special.polygamma, (1, -50.3), 15.059729299010273),
    (special.beta, (1e-3, 1e-3), 1999.996714935228), (special.gammaincinv, (1e-3, 0.5), 5.244206408277979e-302),
    (special.kl_div, (1.5, 1.5), 0.0),
])
def test_both_modes_are_precise_where_libraries_lose_it(function: Any, arguments: Any, expected: float) -> None:
    whole = tuple([one for one in arguments if isinstance(one, int)])
    xs = [f64(one) for one in arguments[len(whole) :]]
    for run in ways(function):
        found = run(*whole, *xs).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-11)
        assert np.signbit(found) == np.signbit(expected)


def test_dtypes() -> None:
    for name in ("gammaln", "erfc", "i0e", "log_ndtr"):
        function = getattr(special, name)
        assert function([1, 2]).dtype == hf.float32
        for dtype in ("float16", "bfloat16", "float32", "float64"):
            x = hf.asarray([0.5, 2.0], dtype=dtype)
            for run in ways(function):
                assert run(x).dtype == x.dtype
                rtol = {"float16": 2e-3, "bfloat16": 2e-2}.get(dtype, 1e-6)
                near(run(x).astype(hf.float32), function(f64([0.5, 2.0])), rtol)


def test_functions_of_scipy_take_tensors() -> None:
    scipys = pytest.importorskip("scipy.special")
    x = hf.tensor([0.5, 2.0], requires_grad=True)
    y = scipys.erfc(x)
    assert isinstance(y, hf.Tensor)
    hf.sum(y).backward()
    near(x.grad, -2 / np.sqrt(np.pi) * np.exp(-np.array([0.25, 4.0])), 1e-6)


@pytest.mark.parametrize(("call", "text"), [
    (lambda: special.polygamma(-1, [1.0]), "polygamma: n=-1 is no whole number from 0 on"),
    (lambda: special.polygamma(True, [1.0]), "polygamma: n=True is no whole number"),
    (lambda: special.polygamma(f64([1, 2]), [1.0, 2.0]), "is no whole number from 0 on"),
    (lambda: special.multigammaln([3.0], 0), "multigammaln: d=0 is no whole number from 1 on"),
])
def test_orders_that_are_none(call: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call()


def test_a_graph_holds_an_order_of_numpy_as_a_number() -> None:
    assert "{n=2}" in str(hf.compile(lambda x: special.polygamma(np.int64(2), x)).graph(f64([2.5])))


@pytest.mark.parametrize(("dtype", "precision"), [(np.float32, 2.0**-23), (np.float64, 2.0**-52)])
def test_spherical_harmonics_are_those_of_scipy_within_the_stated_bound(dtype: Any, precision: float) -> None:
    polar, azimuth = np.linspace(0, np.pi, 31, dtype=dtype)[:, None], np.linspace(-3, 7, 11, dtype=dtype)
    for n in range(0, 25, 3):
        for m in {-n, -n // 2, 0, n // 3, n}:
            expected = scipy.special.sph_harm_y(n, m, polar.astype(np.float64), azimuth.astype(np.float64))
            found = special.sph_harm_y(n, m, polar, azimuth).numpy()
            assert np.abs(found - expected).max() <= 8 * (n + 1) * precision


def test_spherical_harmonics_compiled_their_gradients_and_errors() -> None:
    given = hf.asarray([0.3, 1.2]), hf.asarray([0.1, 2.0])
    hf.testing.assert_same(lambda t, p: special.sph_harm_y(5, -2, t, p), *given)
    hf.testing.check_gradients(lambda t, p: special.sph_harm_y(5, -2, t, p), given)
    for n, m, text in ((-1, 0, "n=-1"), (2, 3, "m=3"), (2, -3, "m=-3"), (1.0, 0, "n=1.0"), (True, 0, "n=True")):
        with pytest.raises(ValueError, match=text):
            special.sph_harm_y(n, m, 0.0, 0.0)


@pytest.mark.parametrize("mode", [lambda f: f, hf.compile], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", ["gammainc", "gammaincc", "gammaincinv", "betainc", "betaincinv"])
def test_gradients_of_incomplete_functions_at_large_parameters(name: str, mode: Any) -> None:
    """Those of float32 are those of float64, but for the rounding of a quantile near 1."""
    sizes = np.array([9.0, 11.0, 300.0, 1e4, 1e6])
    share, away = np.array([0.1, 0.3, 0.5, 0.9])[:, None, None], 2 * np.ones_like(sizes)[:, None] * sizes[::-1, None]
    parameters = (sizes,) if name.startswith("gamma") else (sizes, away)
    last = share if name.endswith("inv") else getattr(special, name.rstrip("c") + "cinv")(*parameters, share).numpy()
    arrays = np.broadcast_arrays(*parameters, last)

    def gradients(dtype: Any) -> Any:
        given = [hf.asarray(one.astype(np.float32).astype(dtype)) for one in arrays]
        return mode(hf.grad(lambda *xs: hf.sum(getattr(special, name)(*xs)), argnums=len(given) - 1))(*given).numpy()

    rtol = 3e-2 if name == "betaincinv" else 2e-3
    np.testing.assert_allclose(gradients(np.float32), gradients(np.float64), rtol=rtol)
