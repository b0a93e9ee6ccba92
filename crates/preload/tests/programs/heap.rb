# Forks with a large heap: prints what parent and children see, which must not depend on a freeze; lines with # may.
require 'zlib'

def say(*words)
  $stdout.syswrite(words.join(' ') + "\n")
end

def pte
  File.read('/proc/self/status')[/VmPTE:\s+(\d+)/, 1]
end

dice = Random.new(1)
$table = (0...150_000).to_h { |number| [number, dice.rand.to_s] }
$parts = Array.new(60) { dice.bytes(1 + dice.rand(400_000)) }
$nodes = (0...60_000).map { |number| [number, { n: number }, number.to_s] }

def summary
  crc = 0
  $table.each { |key, value| crc = Zlib.crc32("#{key} #{value}", crc) }
  $parts.each { |part| crc = Zlib.crc32(part, crc) }
  Zlib.crc32($nodes.inspect, crc)
end

def churn(seed)
  dice = Random.new(seed)
  $table.keys.sample(20_000, random: dice).each { |key| $table.delete(key) }
  20_000.times { $table[dice.rand(1_000_000)] = dice.rand.to_s * 3 }
  20.times do
    part = $parts[dice.rand($parts.size)]
    part.setbyte(dice.rand(part.bytesize), 1)
    dice.rand < 0.5 ? part << "\0" * dice.rand(300_000) : part.slice!(dice.rand(part.bytesize - 1) + 1..)
  end
  $nodes[dice.rand($nodes.size)] = [seed]
end

def in_child(name)
  fork do
    say '#pte', pte
    yield
    say name, summary
    exit! 7
  end
end

def ended(pid)
  raise "a child ended with #{$?}" unless Process.wait(pid) && $?.exitstatus == 7
end

say 'parent', summary
ended(in_child('quiet child') {})
3.times do |turn|
  pid = in_child("child #{turn}") { churn(100 + turn) }
  churn(turn)
  say 'parent', summary
  ended(pid)
end
ended(in_child('collecting child') { GC.start })
ended(in_child('compacting child') { GC.compact }) if GC.respond_to?(:compact)
GC.start
GC.compact if GC.respond_to?(:compact)
say 'parent', summary
ended(in_child('after collecting') { churn(7); GC.start })
ended(in_child('nested') { churn(8); ended(in_child('grandchild') { churn(9); GC.start }) })
say 'parent', summary
