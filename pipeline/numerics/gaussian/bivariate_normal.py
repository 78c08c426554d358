"""The standard normal distribution in one and two dimensions, for use inside Numba kernels.

With s = √((1 + r) / (1 − r)) in place of the correlation r, Plackett's identity
∂Φ2(h, k; r)/∂r = φ2(h, k; r) becomes

    Φ2(h, k; ρ) = Φ(h) Φ(k) + (1/π) ∫_1^τ exp(−a² − b² − a² s² − b² / s²) / (1 + s²) ds,
    a² = (h − k)² / 8,  b² = (h + k)² / 8,  τ = √((1 + ρ) / (1 − ρ)).

The integrand is smooth on the scale of s itself, so Gauss–Legendre on panels of bounded ratio
reaches rounding error; short panels, as of weak correlations, need few nodes. r → −r is s → 1/s
with a and b exchanged, so only 0 < s ≤ 1 occurs. For h + k ≤ 0 the same integral from s = 0 is all
of Φ2, so tiny corners suffer no cancellation.

Plackett (1954), A reduction formula for normal multivariate integrals, Biometrika 41.
Drezner and Wesolowsky (1990), On the computation of the bivariate normal integral.
Wichura (1988), Algorithm AS 241: the percentage points of the normal distribution.
"""

import math

import numpy as np
import numpy.typing as npt
from numba import njit

from pipeline.errors import FitError
from pipeline.numerics.compilation import callee

_PANEL_RATIO = 3.0
# Relative errors of panels of such exponents are below 1e-14: 6 nodes for ratios up to 1 / 0.9, 10
# nodes up to 1 / 0.7.
_FLAT_EXPONENT = 8.0
_NEGLIGIBLE = 40.0  # e^-40 is below rounding error relative to the end of the tail.
_FAR_ARGUMENT = 40.0  # Φ(-40) underflows, so ±40 stands for ±∞.

_SQRT_HALF = math.sqrt(0.5)
_SQRT_HALF_LOW = -4.833646656726457e-17  # √½ minus its double.
_SPLIT = 134217729.0  # 2²⁷ + 1, Veltkamp's constant.
_SQRT_HALF_HEAD = _SPLIT * _SQRT_HALF - (_SPLIT * _SQRT_HALF - _SQRT_HALF)
_SQRT_HALF_TAIL = _SQRT_HALF - _SQRT_HALF_HEAD
_LOG_2PI = math.log(2.0 * math.pi)

# fmt: off
# Gauss–Legendre with 20, 10 and 6 nodes, the positive half. NumPy's weights have errors of 1e-13.
_NODES = np.array([
    0.07652652113349734, 0.22778585114164507, 0.37370608871541955, 0.5108670019508271,
    0.636053680726515, 0.7463319064601508, 0.8391169718222188, 0.912234428251326,
    0.9639719272779138, 0.9931285991850949,
])
_WEIGHTS = np.array([
    0.15275338713072584, 0.14917298647260374, 0.14209610931838204, 0.13168863844917664,
    0.11819453196151841, 0.10193011981724044, 0.08327674157670475, 0.06267204833410907,
    0.04060142980038694, 0.017614007139152118,
])
_NODES_10 = np.array([
    0.14887433898163121, 0.43339539412924719, 0.67940956829902441, 0.86506336668898451,
    0.97390652851717172,
])
_WEIGHTS_10 = np.array([
    0.29552422471475287, 0.26926671930999636, 0.21908636251598204, 0.14945134915058059,
    0.066671344308688138,
])
_NODES_6 = np.array([
    0.23861918608319691, 0.66120938646626451, 0.93246951420315203,
])
_WEIGHTS_6 = np.array([
    0.46791393457269105, 0.36076157304813861, 0.17132449237917035,
])
# Coefficients of AS 241 (PPND16), highest power first.
_CENTRE_NUMERATOR = (
    2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4,
    4.5921953931549871457e4, 1.3731693765509461125e4, 1.9715909503065514427e3,
    1.3314166789178437745e2, 3.3871328727963666080e0,
)
_CENTRE_DENOMINATOR = (
    5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4,
    2.1213794301586595867e4, 5.3941960214247511077e3, 6.8718700749205790830e2,
    4.2313330701600911252e1, 1.0,
)
_MIDDLE_NUMERATOR = (
    7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1,
    1.27045825245236838258e0, 3.64784832476320460504e0, 5.76949722146069140550e0,
    4.63033784615654529590e0, 1.42343711074968357734e0,
)
_MIDDLE_DENOMINATOR = (
    1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2,
    1.48103976427480074590e-1, 6.89767334985100004550e-1, 1.67638483018380384940e0,
    2.05319162663775882187e0, 1.0,
)
_FAR_NUMERATOR = (
    2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3,
    2.65321895265761230930e-2, 2.96560571828504891230e-1, 1.78482653991729133580e0,
    5.46378491116411436990e0, 6.65790464350110377720e0,
)
_FAR_DENOMINATOR = (
    2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5,
    7.86869131145613259100e-4, 1.48753612908506148525e-2, 1.36929880922735805310e-1,
    5.99832206555887937690e-1, 1.0,
)
# fmt: on


@callee(nogil=True)
def norm_pdf(x: float) -> float:
    """Return the density φ(x) of the standard normal."""
    return math.exp(-0.5 * (x * x + _LOG_2PI))


@callee(nogil=True)
def norm_cdf(x: float) -> float:
    """Return Φ(x) to about 1e-15 relative, also far in the lower tail."""
    y = -x * _SQRT_HALF
    if not 1.0 < y < 30.0:
        return 0.5 * math.erfc(y)
    # erfc multiplies the rounding error of y by 2 y²; Dekker's product gives that error exactly.
    head = _SPLIT * -x - (_SPLIT * -x + x)
    tail = -x - head
    error = head * _SQRT_HALF_HEAD - y + (head * _SQRT_HALF_TAIL + tail * _SQRT_HALF_HEAD)
    error += tail * _SQRT_HALF_TAIL - x * _SQRT_HALF_LOW
    return 0.5 * math.erfc(y) - error * math.exp(-y * y) / math.sqrt(math.pi)


@callee(nogil=True)
def _polynomial(coefficients: tuple[float, ...], x: float) -> float:
    """Evaluate a polynomial by Horner's rule, highest power first."""
    value = 0.0
    for coefficient in coefficients:
        value = value * x + coefficient
    return value


@callee(nogil=True, error_model="numpy")
def norm_ppf(p: float) -> float:
    """Return Φ⁻¹(p) to about 1e-15 relative: AS 241, routine PPND16.

    0 and 1 give ∓∞; p outside [0, 1] gives NaN. For p above ½, pass 1 − p if it is known more
    precisely, and change the sign.
    """
    q = p - 0.5
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        return q * _polynomial(_CENTRE_NUMERATOR, r) / _polynomial(_CENTRE_DENOMINATOR, r)
    smaller = min(p, 1.0 - p)
    if not smaller > 0.0:
        return math.copysign(math.inf, q) if smaller == 0.0 else math.nan
    r = math.sqrt(-math.log(smaller))
    if r <= 5.0:
        r -= 1.6
        x = _polynomial(_MIDDLE_NUMERATOR, r) / _polynomial(_MIDDLE_DENOMINATOR, r)
    else:
        r -= 5.0
        x = _polynomial(_FAR_NUMERATOR, r) / _polynomial(_FAR_DENOMINATOR, r)
    return math.copysign(x, q)


@callee(nogil=True, error_model="numpy")
def _integrate_panel(
    a2: float,
    b2: float,
    lower: float,
    upper: float,
    shift: float,
    nodes: npt.NDArray[np.float64],
    weights: npt.NDArray[np.float64],
) -> float:
    half = 0.5 * (upper - lower)
    middle = lower + half
    total = 0.0
    for i in range(nodes.size):
        below = (middle - half * nodes[i]) ** 2
        above = (middle + half * nodes[i]) ** 2
        total += weights[i] * (
            math.exp(shift - a2 * below - b2 / below) / (1.0 + below)
            + math.exp(shift - a2 * above - b2 / above) / (1.0 + above)
        )
    return half * total


@callee(nogil=True, error_model="numpy")
def integrate_density(a2: float, b2: float, lower: float, upper: float, shift: float) -> float:
    """Integrate (1/π) exp(shift − a² s² − b² / s²) / (1 + s²) ds from lower > 0 to upper ≤ 1.

    `shift` is −a² − b² for a probability, or larger where that would underflow.
    """
    total = 0.0
    while lower < upper:
        right = min(_PANEL_RATIO * lower, upper)
        is_flat = a2 * right * right + b2 / (lower * lower) <= _FLAT_EXPONENT
        if is_flat and lower >= 0.9 * right:
            total += _integrate_panel(a2, b2, lower, right, shift, _NODES_6, _WEIGHTS_6)
        elif is_flat and lower >= 0.7 * right:
            total += _integrate_panel(a2, b2, lower, right, shift, _NODES_10, _WEIGHTS_10)
        else:
            total += _integrate_panel(a2, b2, lower, right, shift, _NODES, _WEIGHTS)
        lower = right
    return total / math.pi


@callee(nogil=True, error_model="numpy")
def is_far_corner(b2: float, tau: float) -> bool:
    """Check whether Φ2 is so far below Φ(h) Φ(k) that their difference would lose digits.

    If so, use `lower_corner_tail`.
    """
    return b2 * (1.0 / (tau * tau) - 1.0) > 2.0


@callee(nogil=True, error_model="numpy")
def lower_corner_tail(a2: float, b2: float, tau: float) -> tuple[float, float]:
    """Return Φ2 for h + k ≤ 0 as (x, y) with Φ2 = x e^y, so that nothing underflows.

    The integral runs from s = 0 to τ.
    """
    peak = a2 * tau * tau + b2 / (tau * tau)
    lower = math.sqrt(b2 / (peak + _NEGLIGIBLE))
    return integrate_density(a2, b2, lower, tau, peak), -(a2 + b2 + peak)


@callee(nogil=True, error_model="numpy")
def _lower_corner_cdf(h: float, k: float, rho: float) -> float:
    """Return Φ2(h, k; ρ) where −1 < ρ < 1 and either ρ ≥ 0 or h + k ≤ 0."""
    a2 = (h - k) ** 2 / 8.0
    b2 = (h + k) ** 2 / 8.0
    tau = math.sqrt((1.0 - abs(rho)) / (1.0 + abs(rho)))
    independent = norm_cdf(h) * norm_cdf(k)
    if rho >= 0.0:
        return independent + integrate_density(b2, a2, tau, 1.0, -(a2 + b2))
    if is_far_corner(b2, tau):
        scaled, log_scale = lower_corner_tail(a2, b2, tau)
        return scaled * math.exp(log_scale)
    return independent - integrate_density(a2, b2, tau, 1.0, -(a2 + b2))


@callee(nogil=True)
def bivariate_normal_cdf(h: float, k: float, rho: float) -> float:
    """Return Φ2(h, k; ρ) = P(X ≤ h, Y ≤ k) for standard normals X, Y with correlation ρ.

    The absolute error is about 1e-16, the relative error about 1e-13. One case is less precise: for
    ρ close to −1 and h close to −k with h + k > 0, the result is the difference
    min(Φ(h), Φ(k)) − Φ(−max(h, k)). NaN if an argument is NaN or |ρ| > 1.
    """
    if math.isnan(h) or math.isnan(k) or not abs(rho) <= 1.0:
        return math.nan
    h = min(max(h, -_FAR_ARGUMENT), _FAR_ARGUMENT)
    k = min(max(k, -_FAR_ARGUMENT), _FAR_ARGUMENT)
    if rho == 1.0:
        return norm_cdf(min(h, k))
    corner = 0.0
    if rho < 0.0 and h + k > 0.0:
        # The opposite corner is the smaller one; computing it involves no cancellation.
        if rho > -1.0:
            corner = _lower_corner_cdf(-h, -k, rho)
        return norm_cdf(min(h, k)) - norm_cdf(-max(h, k)) + corner
    return _lower_corner_cdf(h, k, rho) if rho > -1.0 else 0.0


@njit(nogil=True, cache=True)
def _fill_cdf(
    h: npt.NDArray[np.float64],
    k: npt.NDArray[np.float64],
    rho: npt.NDArray[np.float64],
    probability: npt.NDArray[np.float64],
) -> None:
    for i in range(h.size):
        probability[i] = bivariate_normal_cdf(h[i], k[i], rho[i])


def bivariate_normal_cdf_array(
    h: npt.ArrayLike, k: npt.ArrayLike, rho: npt.ArrayLike
) -> npt.NDArray[np.float64]:
    """Apply `bivariate_normal_cdf` elementwise to arrays that broadcast together."""
    shape = np.broadcast_shapes(np.shape(h), np.shape(k), np.shape(rho))
    h, k, rho = (np.array(np.broadcast_to(x, shape), dtype=np.float64).ravel() for x in (h, k, rho))
    probability = np.empty(h.size)
    _fill_cdf(h, k, rho, probability)
    if np.isnan(probability).any():
        first = int(np.argmax(np.isnan(probability)))
        raise FitError(
            f"The arguments at flat index {first} are h={h[first]}, k={k[first]}, "
            f"rho={rho[first]}, but no argument may be NaN and rho must lie in [-1, 1]. "
            "Leave out missing values and clip rho."
        )
    return probability.reshape(shape)
