/* Chance: what a calibrated model would show in a bin. */
(() => {
  "use strict";
  const C = window.calattn;

  /** The smallest k with P(X ≤ k) ≥ q for X ~ Binomial(n, p), by adding up the probabilities of the rarer outcome. */
  function exactQuantile(q, n, p) {
    const rare = Math.min(p, 1 - p),
      odds = rare / (1 - rare);
    const limit = p <= 0.5 ? q : 1 - q,
      slack = 1e-12;
    let mass = Math.pow(1 - rare, n),
      total = mass,
      k = 0;
    if (p <= 0.5) {
      while (total < limit - slack && k < n) total += mass *= (odds * (n - k)) / ++k;
      return k;
    }
    // X = n − Y: P(X ≤ n − 1 − j) = 1 − P(Y ≤ j), so look for the largest j with P(Y ≤ j) ≤ 1 − q.
    let j = -1;
    while (total <= limit + slack && j < n - 1) {
      j = k;
      total += mass *= (odds * (n - k)) / ++k;
    }
    return n - 1 - j;
  }

  function binomialQuantile(q, n, p) {
    if (!(n > 0) || p <= 0) return 0;
    if (p >= 1) return n;
    const variance = n * p * (1 - p);
    if (variance <= 25) return exactQuantile(q, n, p);
    const z = q < 0.5 ? -C.view.page.z : C.view.page.z, // of the page's level
      deviation = Math.sqrt(variance),
      skew = (1 - 2 * p) / deviation;
    const place = n * p + deviation * (z + (skew * (z * z - 1)) / 6);
    return Math.min(n, Math.max(0, Math.ceil(place - 0.5)));
  }

  /** Accuracies that a calibrated model would show in a bin, the page's level of the time. */
  function consistency(count, said) {
    const tail = (1 - C.view.page.level) / 2;
    return [tail, 1 - tail].map((q) => binomialQuantile(q, count, said) / count);
  }

  Object.assign(C, { binomialQuantile, consistency });
})();
