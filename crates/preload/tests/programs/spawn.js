// Node has no fork: it starts programs. It has threads of libuv and V8, so nothing is frozen, and nothing may change.
const { spawn, spawnSync, fork } = require('child_process');
const crypto = require('crypto');

const heap = Array.from({ length: 200000 }, (_, number) => ({ number, text: `${number}`.repeat(3) }));
const digest = () => crypto.createHash('sha256').update(JSON.stringify(heap)).digest('hex');

if (process.argv[2] === 'child') {
  process.on('message', (message) => process.send(message * 2, () => process.exit(3)));
} else {
  console.log(digest());
  console.log(spawnSync('/bin/echo', ['spawned']).stdout.toString().trim());
  const shell = spawn('/bin/sh', ['-c', 'cat; exit 5'], { stdio: ['pipe', 'inherit', 'inherit'] });
  shell.stdin.end('through a pipe\n');
  shell.on('exit', (code) => {
    console.log('exit', code);
    const other = fork(__filename, ['child']);
    other.send(21);
    other.on('message', (message) => console.log('message', message));
    other.on('exit', (code) => console.log('exit', code, digest()));
  });
}
