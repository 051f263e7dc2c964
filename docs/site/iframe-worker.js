// Lets the search work in a site that is opened from files: browsers start no Worker from a file, but a frame may load
// its script. (Material for MkDocs looks for "iframe-worker" in this file's name, and then loads none from elsewhere.)
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.ready = new Promise((resolve) => {
        window.addEventListener("message", (event) => this.hear(event));
        this.start(String(new URL(url, location.href)), resolve);
      });
    }

    start(script, resolve) {
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => window.postMessage({ worker: script, data }, "*");
      this.script = script;
      const element = inside.document.createElement("script");
      element.addEventListener("load", resolve);
      element.src = script;
      inside.document.body.append(element);
    }

    hear({ data }) {
      if (data && data.worker === this.script) {
        this.dispatchEvent(new MessageEvent("message", { data: data.data }));
      }
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
