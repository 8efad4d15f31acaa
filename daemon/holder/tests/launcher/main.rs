//! The launcher as a program of its own, for the tests of this crate: `lodged launcher` is the product's.
fn main() {
    lodge_holder::launcher::main()
}
