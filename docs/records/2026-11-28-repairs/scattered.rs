use std::time::{Duration,Instant};
use palimpsest_fork::*;
fn main(){
  let gib: usize = std::env::args().nth(1).unwrap().parse().unwrap();
  let n = gib<<30;
  let m = unsafe{libc::mmap(std::ptr::null_mut(), n, 3, libc::MAP_PRIVATE|libc::MAP_ANONYMOUS, -1,0)} as *mut u8;
  unsafe{libc::madvise(m.cast(), n, libc::MADV_NOHUGEPAGE)};
  for i in (0..n).step_by(4096){ unsafe{m.add(i).write_volatile(1)} }
  let o=Options::new().pause(Pause::Within(Duration::from_millis(2))).measure(Measure::Nothing);
  unsafe{freeze(&o)}.unwrap();
  loop{ let p=unsafe{freeze_slice()}.unwrap(); if p.stage!=Stage::UnderWay {println!("{:?}",p.stage); break} }
  let mut x=0u64; for i in (0..n).step_by(4096){ x+=unsafe{m.add(i).read_volatile()} as u64 } println!("{x}");
  for _ in 0..3 {
  let mut f=vec![];
  for k in 0..300usize { 
    for j in 0..200usize { let i=(k*7919+j*104729)*4096 % n; unsafe{m.add(i).write_volatile(2)} }
    let t=Instant::now(); match unsafe{fork()}.unwrap() { Forked::Child=>unsafe{libc::_exit(0)}, Forked::Parent(p)=>{ f.push((t.elapsed().as_micros(),k)); unsafe{libc::waitpid(p.as_raw_nonzero().get(),std::ptr::null_mut(),0)}; } } }
  let sum:u128=f.iter().map(|x|x.0).sum(); f.sort(); f.reverse(); println!("longest {:?} median {:?} mean {} {:?}", &f[..8], f[150], sum/300, status());
  }
}
