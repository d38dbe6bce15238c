/* The profile of a subject: its bins at each temperature of its grid, and the smooth curve over them. */
(() => {
  "use strict";
  const C = window.calattn;

  function decode(text, Kind) {
    const raw = atob(text),
      bytes = new Uint8Array(raw.length);
    for (let place = 0; place < raw.length; place++) bytes[place] = raw.charCodeAt(place);
    return new Kind(bytes.buffer);
  }

  const ENOUGH = 20; // samples that a point of the smooth curve must rest on: a standard error of 11 points at most
  const BANDWIDTH = 0.05,
    POINTS = 201;

  /** Kernel averages over fine bins, the Gaussian reflected at 0 and 1: accuracy over confidence, both averages of the same
      samples; over `at`, a calibrated model would leave the diagonal wherever its confidences crowd. (Σ K)² / Σ K² is how many
      equally weighted samples would be as certain; the accuracy is null where those are not enough. */
  function smoothCurve({ count, confidence, correct }) {
    const xs = [],
      ys = [],
      certain = [],
      filled = [];
    for (let bin = 0; bin < count.length; bin++) {
      if (count[bin] > 0) filled.push([confidence[bin] / count[bin], count[bin], correct[bin]]);
    }
    const kernel = (distance) =>
      Math.abs(distance) > 7 * BANDWIDTH ? 0 : Math.exp(-0.5 * (distance / BANDWIDTH) ** 2);
    for (let place = 0; place < POINTS; place++) {
      const at = place / (POINTS - 1);
      let mass = 0,
        square = 0,
        said = 0,
        right = 0;
      for (const [mean, samples, hits] of filled) {
        const weight = kernel(at - mean) + kernel(at + mean) + kernel(2 - at - mean);
        mass += weight * samples;
        square += weight * weight * samples;
        said += weight * samples * mean;
        right += weight * hits;
      }
      xs.push(mass > 0 ? said / mass : null);
      ys.push(mass > 0 ? right / mass : null);
      certain.push(square > 0 ? (mass * mass) / square : 0);
    }
    const enough = Math.min(ENOUGH, Math.max(...certain));
    return { xs, ys: ys.map((y, k) => (certain[k] < enough ? null : y)) };
  }

  /** What the document says about one subject at each temperature of its grid. */
  class Profile {
    constructor({ grid, start, nll, brier, verdicts, best, fine, equal_count: equal }) {
      Object.assign(this, { grid, start, nll, brier, verdicts, size: fine.bins });
      this.best = best && grid.includes(best.value) ? best : null; // where the slider can stand
      this.curves = new Map();
      this.count = decode(fine.count, Uint32Array);
      this.confidence = decode(fine.confidence, Float32Array);
      this.correct = decode(fine.correct, Uint32Array);
      this.equal = new Map(equal.map(({ counts, values }) => [counts.length, [counts, decode(values, Float32Array)]]));
    }

    /** Index of the grid's temperature nearest to `value` on the logarithmic scale. */
    nearest(value) {
      let best = 0;
      this.grid.forEach((one, index) => {
        if (Math.abs(Math.log(one / value)) < Math.abs(Math.log(this.grid[best] / value))) best = index;
      });
      return best;
    }

    fine(index) {
      const cut = (values) => values.subarray(index * this.size, (index + 1) * this.size);
      return { count: cut(this.count), confidence: cut(this.confidence), correct: cut(this.correct) };
    }

    /** Bins of equal width, made of fine ones: [{low, high, count, said, right}]. */
    widthBins(index, num) {
      const { count, confidence, correct } = this.fine(index),
        each = this.size / num;
      return Array.from({ length: num }, (_, bin) => {
        let n = 0,
          said = 0,
          right = 0;
        for (let place = bin * each; place < (bin + 1) * each; place++) {
          n += count[place];
          said += confidence[place];
          right += correct[place];
        }
        return {
          low: bin / num,
          high: (bin + 1) / num,
          count: n,
          said: n ? said / n : null,
          right: n ? right / n : null,
        };
      });
    }

    countBins(index, num) {
      const [counts, values] = this.equal.get(num);
      return counts.map((count, bin) => {
        const [said, right] = values.subarray(2 * (index * num + bin));
        return { low: null, high: null, count, said: count ? said : null, right: count ? right : null };
      });
    }

    bins(index, num, binning) {
      return binning === "count" ? this.countBins(index, num) : this.widthBins(index, num);
    }

    ece(index, num, binning) {
      let gap = 0,
        n = 0;
      for (const bin of this.bins(index, num, binning)) {
        if (bin.count > 0) gap += bin.count * Math.abs(bin.right - bin.said);
        n += bin.count;
      }
      return n ? gap / n : null;
    }

    /** ECE at every temperature of the grid, computed once for each choice of bins. */
    eces(num, binning) {
      const key = `${binning} ${num}`;
      if (!this.curves.has(key))
        this.curves.set(
          key,
          this.grid.map((_, index) => this.ece(index, num, binning)),
        );
      return this.curves.get(key);
    }

    /** Where that curve is lowest; of equals, the one nearest to T = 1. */
    lowest(num, binning) {
      const curve = this.eces(num, binning);
      const far = (index) => Math.abs(index - this.start);
      return curve.reduce(
        (best, value, index) =>
          value < curve[best] || (value === curve[best] && far(index) < far(best)) ? index : best,
        0,
      );
    }

    /** Samples, mean confidence and accuracy of those above a confidence that is a multiple of 1/300. */
    above(index, threshold = 0) {
      const { count, confidence, correct } = this.fine(index);
      let n = 0,
        said = 0,
        right = 0,
        all = 0;
      const first = Math.round(threshold * this.size);
      for (let place = 0; place < this.size; place++) {
        all += count[place];
        if (place < first) continue;
        n += count[place];
        said += confidence[place];
        right += correct[place];
      }
      return { count: n, share: all ? n / all : null, said: n ? said / n : null, right: n ? right / n : null };
    }
  }

  Object.assign(C, { ENOUGH, smoothCurve, Profile });
})();
