/* Elements. Text from the document only ever becomes a text node or an attribute, so a label named like a tag stays a
   label. Every file of scripts/ is a closure that reads what it needs from `window.calattn` and adds what it has. */
(() => {
  "use strict";

  const SVG = "http://www.w3.org/2000/svg";

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (typeof value === "function") element.addEventListener(name, value);
      else element.setAttribute(name, value === true ? "" : String(value));
    }
    for (const child of children.flat(Infinity)) {
      if (child !== null && child !== undefined && child !== false) element.append(child);
    }
    return element;
  }

  /** An HTML element; functions among the attributes become listeners, strings among the children become text. */
  const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
  const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

  /** A name that breaks where its parts end; elsewhere only if it must. */
  const breakable = (name) =>
    (String(name).match(/[^/._-]*[/._-]+|[^/._-]+/g) || []).flatMap((part) => [part, h("wbr")]);

  let lastId = 0;
  const freshId = (stem) => `${stem}-${++lastId}`;

  window.calattn = { h, s, breakable, freshId };
})();
