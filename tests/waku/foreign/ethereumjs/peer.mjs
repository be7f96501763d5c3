// A devp2p peer with a capability "waku" of 128 messages, which it hands through: for tests/waku/interop.
//
//     node peer.mjs listen               says {"listening": port, "public": hex}
//     node peer.mjs dial PORT PUBLIC     dials 127.0.0.1
//
// Says a line of JSON for what happens:      Does what a line of JSON on its input says:
//     {"connected": client id, "public": …}      {"send": [code, hex]}
//     {"packet": [code, hex]}                    {"ping": true}
//     {"pong": true}                             {"disconnect": reason}
//     {"disconnected": reason, "byUs": …}
//     {"error": words}
// and ends where its input ends.

import { createInterface } from 'node:readline'
import { randomBytes } from 'node:crypto'
import { RLPx } from '@ethereumjs/devp2p'
import snappy from 'snappyjs'

const hex = (bytes) => Buffer.from(bytes).toString('hex')
const say = (event) => process.stdout.write(JSON.stringify(event) + '\n')

let talk = null

class Waku {
  constructor(version, peer, send) {
    this.peer = peer
    this.write = send
    talk = this
  }

  // devp2p hands over what it has inflated; compressing is left to the protocol.
  send(code, payload) {
    this.write(code, this.peer._hello.protocolVersion >= 5 ? snappy.compress(payload) : payload)
  }

  _handleMessage(code, payload) {
    say({ packet: [code, hex(payload)] })
  }
}

// Not version 0: that number it writes as the byte 00, which is not canonical, and neither geth nor we take it.
const node = new RLPx(randomBytes(32), {
  capabilities: [1, 2].map((version) => ({ name: 'waku', version, length: 128, constructor: Waku })),
  clientId: Buffer.from('foreign'),
  listenPort: 30303,
})
node.events.on('peer:added', (peer) => {
  peer._handlePong = () => say({ pong: true })
  say({ connected: peer._hello.clientId, public: hex(peer.getId()) })
})
node.events.on('peer:removed', (peer, reason, byUs) => say({ disconnected: reason, byUs }))
node.events.on('peer:error', (peer, error) => say({ error: String(error) }))
node.events.on('error', (error) => say({ error: String(error) }))

const [role, port, remote] = process.argv.slice(2)
if (role === 'listen') {
  node.events.once('listening', () => say({ listening: node._server.address().port, public: hex(node.id) }))
  node.listen(0, '127.0.0.1')
} else {
  node.connect({ id: Buffer.from(remote, 'hex'), address: '127.0.0.1', tcpPort: Number(port) })
}

createInterface({ input: process.stdin })
  .on('line', (line) => {
    const order = JSON.parse(line)
    if (order.send) talk.send(order.send[0], Buffer.from(order.send[1], 'hex'))
    if (order.ping) talk.peer._sendPing()
    if ('disconnect' in order) talk.peer.disconnect(order.disconnect)
  })
  .on('close', () => process.exit(0))
