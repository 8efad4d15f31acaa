//! The launcher as a program of its own, for the tests of this crate: `lodged launcher` is the product's.

fn main() {
    let socket =
        lodge_kernel::sys::fd::inherit(0).expect("the test passes the socket as standard input");
    lodge_holder::launcher::run(socket).expect("the launcher serves until the test closes its end");
}
