// @ts-check
// Keeps the page up to date without reloading it: the server says that it has changed, and what differs is replaced.
"use strict";

const RETRY_MS = 3000;
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

let busy = false;
let again = false;

/** Fetch this page and show what differs. One at a time: a change meanwhile is fetched afterwards. */
async function refresh() {
  if (busy) {
    again = true;
    return;
  }
  busy = true;
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    if (answer.status === 401) location.reload(); // the session is over: that page says what to do
    if (answer.ok || answer.status === 404) {
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const id of PARTS) {
        const [old, wanted] = [document.getElementById(id), fresh.getElementById(id)];
        if (old && wanted) patch(old, wanted);
      }
    }
  } catch {
    // the stream of updates notices that, too, and says so
  } finally {
    busy = false;
    if (again) {
      again = false;
      void refresh();
    }
  }
}

/** @param {boolean} lost */
function showLost(lost) {
  const banner = document.getElementById("lost");
  if (banner) banner.hidden = !lost;
}

function listen() {
  const path = document.getElementById("header")?.dataset.updates;
  if (!path) return;
  const updates = new EventSource(path);
  updates.addEventListener("open", () => showLost(false));
  updates.addEventListener("changed", () => void refresh());
  updates.addEventListener("error", () => {
    showLost(true);
    if (updates.readyState !== EventSource.CLOSED) return; // it tries again by itself
    setTimeout(() => {
      void refresh();
      listen();
    }, RETRY_MS);
  });
}

listen();
