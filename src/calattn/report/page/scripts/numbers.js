/* Numbers in words. */
(() => {
  "use strict";
  const C = window.calattn;

  const DASH = "–";
  const missing = (value) => value === null || value === undefined || Number.isNaN(value);
  const minus = (text) => text.replace("-", "−");
  /** Of two numbers as near, the one with an even last digit, as Python has it: the same number looks the same everywhere. */
  function rounded(value, places) {
    const text = value.toFixed(places);
    const tied = Number.isInteger(value * 2 ** (places + 1)) && !Number.isInteger(value * 2 ** places);
    return tied && Number(text.at(-1)) % 2 ? (value - Math.sign(value) * 0.4 * 10 ** -places).toFixed(places) : text;
  }
  const fixed = (value, places) => (missing(value) ? DASH : minus(rounded(value, places)));
  const whole = (value) => (missing(value) ? DASH : minus(Math.round(value).toLocaleString("en-US")));
  const percent = (fraction, places = 2) => (missing(fraction) ? DASH : `${fixed(100 * fraction, places)} %`);
  /** A probability that is neither 0 nor 1 never looks like it. */
  function probability(value) {
    if (value > 0 && value < 0.00005) return "< 0.01 %";
    return value < 1 && value >= 0.99995 ? "> 99.99 %" : percent(value);
  }
  const temperatureText = (value) => (missing(value) ? DASH : value.toPrecision(3));
  /** Two digits, as the terminal prints it. */
  const chanceText = (p) => (missing(p) ? DASH : p < 0.0005 ? "< 0.001" : String(Number(p.toPrecision(2))));
  const short = (value) => (missing(value) ? DASH : minus(String(Number(value.toPrecision(4)))));

  /** A metric's value as the tables print it: `value * factor` with `places` decimals. */
  function metricNumber(metric, value, { signed = false } = {}) {
    if (metric.infinite === true && value === metric.value) return "∞";
    if (missing(value)) return DASH;
    const text = fixed(value * metric.factor, metric.places);
    return signed && value > 0 ? `+${text}` : text;
  }

  function metricText(metric, value) {
    const text = metricNumber(metric, value);
    return text === DASH || text === "∞" ? text : `${text} ${metric.unit}`;
  }

  function intervalText(metric, low, high, options) {
    if (missing(low) || missing(high)) return "";
    return `[${metricNumber(metric, low, options)}, ${metricNumber(metric, high, options)}]`;
  }

  function madeText({ made, version }) {
    const format = new Intl.DateTimeFormat("en-GB", { dateStyle: "long", timeStyle: "short", timeZone: "UTC" });
    return `made ${format.format(new Date(made))} UTC by calattn ${version}`;
  }

  Object.assign(C, { DASH, missing, fixed, whole, percent, probability, temperatureText, chanceText, short });
  Object.assign(C, { metricNumber, metricText, intervalText, madeText });
})();
