// Lets the search work where the pages are opened from a folder: browsers refuse a Worker for file://. A hidden
// frame runs the worker's script instead, with the same messages. Elsewhere this does nothing.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.onmessage = null;
      this.waiting = [];
      this.isReady = false;
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.appendChild(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => setTimeout(() => this.onmessage && this.onmessage({ data }));
      const script = this.inside.document.createElement("script");
      script.src = new URL(url, location.href).href;
      script.onload = () => {
        this.isReady = true;
        this.waiting.splice(0).forEach((data) => this.deliver(data));
      };
      this.inside.document.body.appendChild(script);
      this.frame = frame;
    }
    postMessage(data) {
      this.isReady ? this.deliver(data) : this.waiting.push(data);
    }
    deliver(data) {
      setTimeout(() => this.inside.onmessage({ data }));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
