// Figures as people read them, and elements made of text that nobody vouches for: text is only ever set as text.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An element with attributes and children; a string becomes text. */
export function make(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same for SVG. */
export function draw(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) set(element, name, value);
  element.append(...children);
  return element;
}

/** Sets an attribute where it differs; null takes it away. */
export function set(element, name, value) {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** Sets a text where it differs. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const count = (value) => Math.round(value).toLocaleString("en-GB");

export function plural(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** Three digits and a binary unit. */
export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return `${Number(value.toFixed(digits))} ${units[unit]}`;
}

/** How long something takes. */
export function seconds(value) {
  if (value === null || value === undefined) return "";
  if (value < 0.9995) return `${(value * 1000).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  return value < 99.5 ? `${value.toFixed(value < 9.95 ? 2 : 1)} s` : `${count(value)} s`;
}

/** How long ago something was. */
export function age(value) {
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (value >= size) return `${Math.floor(value / size)} ${unit}`;
  }
  return `${Math.max(0, Math.floor(value))} s`;
}

/** The time of day of a clock in seconds. */
export function clock(value) {
  return new Date(value * 1000).toLocaleTimeString("en-GB");
}

export function share(part, whole) {
  return whole > 0 ? Math.min(1, Math.max(0, part / whole)) : 0;
}
