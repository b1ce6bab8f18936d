// A page opened from a disk may start no worker, and search runs in one. There, and only there, a
// hidden frame runs the worker's script: inside it, postMessage and message events are a worker's.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.tell(data)
      this.isLoaded = new Promise(resolve => {
        const script = this.inside.document.createElement("script")
        script.src = new URL(url, document.baseURI)
        script.onload = resolve
        this.inside.document.body.append(script)
      })
    }

    tell(data) {
      const event = new MessageEvent("message", { data })
      this.dispatchEvent(event)
      this.onmessage?.(event)
    }

    async postMessage(data) {
      await this.isLoaded
      this.inside.dispatchEvent(new MessageEvent("message", { data }))
    }

    terminate() {
      this.inside.frameElement.remove()
    }
  }
}
