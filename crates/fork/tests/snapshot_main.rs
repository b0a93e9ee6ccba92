//! A snapshot on the main thread, whose variables are not on the pages of its stack: without libtest, which has more
//! threads.

#[path = "snapshot/core_number.rs"]
mod core_number;

fn main() {
    core_number::is_left_to_the_kernel();
    println!("the core number is left to the kernel: ok");
}
