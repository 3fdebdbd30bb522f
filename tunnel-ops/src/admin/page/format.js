// Numbers and times for people.

const count = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

export const number = (value) => count.format(value);

/** A rate per second: three digits are enough. */
export function rate(value) {
  if (value === null || value === undefined) return null;
  if (value === 0) return "0";
  return value < 0.1 ? "<0.1" : short.format(value);
}

/** Bytes, in units of 1,024. */
export function bytes(value) {
  if (value === null || value === undefined) return null;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(value < 10 ? 1 : 0)} ${units[unit]}`;
}

/** A time in milliseconds. */
export function duration(milliseconds) {
  if (milliseconds === null || milliseconds === undefined) return null;
  if (milliseconds < 10) return `${milliseconds.toFixed(1)} ms`;
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  if (milliseconds < 60_000) return `${(milliseconds / 1000).toFixed(1)} s`;
  return age(milliseconds);
}

/** How long something lasts, in its two largest units. */
export function age(milliseconds) {
  const seconds = Math.max(0, Math.floor(milliseconds / 1000));
  const units = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, length]) => seconds >= length);
  if (first < 0) return "0 s";
  const [name, length] = units[first];
  const text = `${Math.floor(seconds / length)} ${name}`;
  const next = units[first + 1];
  // Seconds beside minutes only make a page restless.
  if (!next || next[0] === "s") return text;
  const rest = Math.floor((seconds % length) / next[1]);
  return rest > 0 ? `${text} ${rest} ${next[0]}` : text;
}

/** For how long this has been so, by this browser's clock. */
export const since = (time) => (time ? age(Date.now() - Date.parse(time)) : null);

/** How long ago this was. */
export const ago = (time) => (time ? `${since(time)} ago` : null);

/** A moment in the zone of this browser. */
export function moment(time) {
  if (!time) return null;
  const date = new Date(time);
  return Number.isNaN(date.getTime()) ? String(time) : date.toLocaleString("sv");
}

/** The time of day of a moment, to the millisecond. */
export function clock(time) {
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return String(time ?? "");
  return `${date.toLocaleTimeString("sv")}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

/** `1 session`, `2 sessions`. */
export const plural = (value, what) => `${number(value)} ${what}${value === 1 ? "" : "s"}`;
