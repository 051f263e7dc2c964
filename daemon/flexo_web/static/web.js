// @ts-check
// Keeps the page up to date without reloading it: the server says that it has changed, and what differs is replaced.
"use strict";

const RETRY_MS = 3000;
const POLL_MS = 5000;
const WITHIN_MS = 10000;
const LONGEST_PAUSE_MS = 15000;
const STREAMS = 4; // of a browser: over HTTP/1.1 it has six connections to a host, and each page needs one to load
const PARTS = ["banners", "main"];

/** Make `old` as `fresh` is, node by node, so that focus, selection and scrolling stay where nothing changed.
 * @param {Node} old @param {Node} fresh */
function patch(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  const same = old instanceof Element && fresh instanceof Element && old.nodeName === fresh.nodeName && old.id === fresh.id;
  if (!same) {
    old.parentNode?.replaceChild(document.importNode(fresh, true), old);
    return;
  }
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of [...fresh.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  patchChildren(old, fresh);
}

/** @param {Element} old @param {Element} fresh */
function patchChildren(old, fresh) {
  const byId = new Map([...old.children].filter((child) => child.id).map((child) => [child.id, child]));
  let at = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const known = wanted instanceof Element && wanted.id ? byId.get(wanted.id) : undefined;
    if (known && known !== at) {
      old.insertBefore(known, at);
      at = known;
    }
    if (!at || (!known && at instanceof Element && at.id && fresh.ownerDocument.getElementById(at.id))) {
      old.insertBefore(document.importNode(wanted, true), at);
      continue;
    }
    const next = at.nextSibling;
    patch(at, wanted);
    at = next;
  }
  while (at) {
    const next = at.nextSibling;
    old.removeChild(at);
    at = next;
  }
}

/** What is wrong: with the stream of updates, and with this page's own requests; "": nothing. */
const problems = { stream: "", page: "" };
const SILENT = "flexo-web does not answer.";

/** @param {Partial<typeof problems>} found */
function say(found) {
  Object.assign(problems, found);
  const banner = document.getElementById("lost");
  const problem = problems.page || problems.stream;
  if (!banner) return;
  banner.hidden = !problem;
  if (problem && banner.firstElementChild) banner.firstElementChild.textContent = problem;
}

/** @param {number} ms */
function pause(ms) {
  return new Promise((done) => setTimeout(done, ms));
}

/** Wait until somebody can see the page. */
async function shown() {
  while (document.hidden) await new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
}

/** Fetch this page and show what differs. Returns the status of the answer: 200 once the page is shown as it is
 * now, or is being replaced; 0 if there was no answer in time. */
async function fetchPage() {
  try {
    const options = { cache: "no-store", redirect: "manual", signal: AbortSignal.timeout(WITHIN_MS) };
    const answer = await fetch(location.href, /** @type {RequestInit} */ (options));
    // the session is over: the page that says what to do, or the provider that signs people in, comes instead
    if (answer.status === 401 || answer.type === "opaqueredirect") {
      location.reload();
      return 200;
    }
    if (answer.ok || answer.status === 404) {
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const id of PARTS) {
        const [old, wanted] = [document.getElementById(id), fresh.getElementById(id)];
        if (old && wanted) patch(old, wanted);
      }
      return 200;
    }
    return answer.status;
  } catch {
    return 0;
  }
}

let busy = false;
let again = false;

/** Fetch this page until it is shown as it is now. One at a time: a change meanwhile is fetched afterwards. */
async function refresh() {
  again = true;
  if (busy) return;
  busy = true;
  for (let refused = 0; again && !document.hidden; ) {
    again = false;
    const status = await fetchPage();
    if (status === 200) {
      refused = 0;
      say({ page: "" });
      continue;
    }
    again = true;
    refused += 1;
    // with many pages open, one refusal is no wonder: they all hear of a change at the same time
    if (status !== 429 && status !== 503) say({ page: SILENT });
    else if (refused > 2) say({ page: "flexo-web refuses this page: it has too many requests." });
    // not all pages at the same time again
    await pause(Math.min(500 * 2 ** refused, LONGEST_PAUSE_MS) * (0.5 + Math.random() / 2));
  }
  busy = false;
}

/** Follow the page's stream of updates until the stream ends, or nobody can see the page any more.
 * @param {string} path @returns {Promise<void>} */
function follow(path) {
  return new Promise((done) => {
    if (document.hidden) {
      done();
      return;
    }
    const updates = new EventSource(path);
    const end = () => {
      updates.close();
      clearTimeout(limit);
      document.removeEventListener("visibilitychange", end);
      say({ stream: "" });
      done();
    };
    const limit = setTimeout(end, WITHIN_MS); // where the browser has no connection left, the stream never opens
    document.addEventListener("visibilitychange", end);
    updates.addEventListener("open", () => {
      clearTimeout(limit);
      say({ stream: "" });
    });
    updates.addEventListener("changed", () => void refresh());
    updates.addEventListener("error", () => {
      if (updates.readyState === EventSource.CLOSED) end();
      else say({ stream: SILENT }); // it tries again by itself
    });
  });
}

/** Do something in one of the browser's places for streams, if one is free. Returns whether one was.
 * @param {() => Promise<void>} act */
async function inPlace(act) {
  if (!navigator.locks) return act().then(() => true); // a browser has them with TLS, and on a loopback address
  for (let place = 0; place < STREAMS; place++) {
    const had = await navigator.locks.request(`updates ${place}`, { ifAvailable: true }, (lock) => lock && act().then(() => true));
    if (had) return true;
  }
  return false;
}

/** Keep the page up to date while somebody can see it: by a stream, or where the browser has enough streams, by
 * asking now and then. */
async function keepUpToDate() {
  const path = document.getElementById("header")?.dataset.updates;
  while (path) {
    if (document.hidden) {
      await shown();
      void refresh();
    }
    const had = await inPlace(() => follow(path));
    if (document.hidden) continue;
    await pause(had ? RETRY_MS : POLL_MS);
    void refresh();
  }
}

void keepUpToDate();
