/* The state of the page: what it shows and where its controls stand, in one object that every panel reads. */
(() => {
  "use strict";
  const C = window.calattn;

  const BINS = [5, 10, 15, 20, 30]; // each divides the fine bins of a profile
  const USUAL = 15;

  class View {
    constructor(page) {
      const { subjects } = page,
        first = subjects[0].bins;
      Object.assign(this, { page, subjects, several: subjects.length > 1 });
      this.levelText = `${C.short(100 * page.level)} %`;
      this.profiles = new Map(subjects.map((subject) => [subject.id, new C.Profile(subject.temperature)]));
      this.at = new Map(subjects.map(({ id }) => [id, this.profiles.get(id).start])); // index into each one's grid
      this.own = null; // "NLL" while each subject stands at its own T* by NLL
      this.bins = BINS.includes(first) ? first : USUAL;
      this.binning = "width";
      this.threshold = C.missing(subjects[0].target) ? 0.9 : 0.5; // of a rare class, few or none lie above 0.9
      this.changed = () => {}; // the page puts its redrawing here
      this.first = { bins: this.bins, binning: this.binning, threshold: this.threshold };
    }

    binsText() {
      return `${this.bins} equal-${this.binning === "count" ? "count" : "width"} bins`;
    }

    /** Whether the live ECE of a subject has other bins than its metric. */
    rebinned(subject) {
      return this.bins !== subject.bins || this.binning !== "width";
    }

    /** The temperature, confidence, accuracy, ECE and NLL of a subject as the controls stand. */
    live(subject) {
      const profile = this.profiles.get(subject.id),
        index = this.at.get(subject.id);
      const { said, right } = profile.above(index);
      const ece = profile.ece(index, this.bins, this.binning);
      return {
        profile,
        index,
        temperature: profile.grid[index],
        moved: index !== profile.start,
        said,
        right,
        ece,
        nll: profile.nll[index],
        brier: profile.brier[index],
        verdict: profile.verdicts[index],
      };
    }

    /** What is compared: the confidence with the accuracy or, with a target, P(class) with the share of that class.
        `mean` and `share` are short names of the two, for places with little room. */
    words({ target }) {
      const top = { it: "the confidence", confidence: "confidence", rate: "accuracy", are: "correct" };
      if (C.missing(target)) return { ...top, mean: "confidence", share: "accuracy" };
      const prob = `P(${target})`,
        named = `class ${target}`;
      return { it: prob, confidence: prob, rate: `share of ${named}`, are: named, mean: "mean P", share: "share" };
    }

    /** NLL with the decimals of its metric: the same number looks the same everywhere. */
    nllText(subject, value, infinite = "∞") {
      const metric = subject.metrics.find((one) => one.name === "nll");
      return C.missing(value) ? infinite : C.fixed(value, metric ? metric.places : 3);
    }

    setTemperature(value) {
      this.own = null;
      for (const [id, profile] of this.profiles) this.at.set(id, profile.nearest(value));
      this.changed();
    }

    /** Each at its own T* by NLL, or where its own curve of ECE is lowest. */
    setOwn(by) {
      this.own = by;
      for (const [id, profile] of this.profiles) {
        const best = profile.best ? profile.grid.indexOf(profile.best.value) : profile.start;
        this.at.set(id, by === "ECE" ? profile.lowest(this.bins, this.binning) : best);
      }
      this.changed();
    }

    setBins(count) {
      this.bins = count;
      this.rebinned_();
    }

    /** Other bins have another lowest ECE. */
    rebinned_() {
      if (this.own === "ECE") this.setOwn("ECE");
      else this.changed();
    }

    setBinning(kind) {
      this.binning = kind;
      this.rebinned_();
    }

    setThreshold(value) {
      this.threshold = value;
      this.changed();
    }

    /** What is not as the page starts, for its address: T=1.36&bins=20. */
    address() {
      const { temperature, moved } = this.live(this.subjects[0]),
        start = this.first,
        parts = [];
      if (this.own) parts.push(["own", this.own]);
      else if (moved) parts.push(["T", Number(temperature.toPrecision(5))]);
      for (const name of ["bins", "binning", "threshold"])
        if (this[name] !== start[name]) parts.push([name, this[name]]);
      return parts.map(([name, value]) => `${name}=${value}`).join("&");
    }

    /** The state of an address; what is unknown or out of range in it is left alone. */
    restore(text) {
      const given = new URLSearchParams(text),
        number = (name) => Number(given.get(name));
      if (BINS.includes(number("bins"))) this.bins = number("bins");
      if (["width", "count"].includes(given.get("binning"))) this.binning = given.get("binning");
      if (given.has("threshold") && number("threshold") >= 0 && number("threshold") < 1)
        this.threshold = number("threshold");
      if (["NLL", "ECE"].includes(given.get("own"))) this.setOwn(given.get("own"));
      else if (number("T") > 0) this.setTemperature(number("T"));
    }
  }

  const page = C.readDocument();
  const view = page && new View(page); // null for a document of another schema: then nothing is drawn

  Object.assign(C, { BINS, view });
})();
