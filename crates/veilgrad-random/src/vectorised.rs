//! Closures compiled for the vector instructions of the machine.

/// A closure that is inlined into the function that `pulp` compiles for AVX2 or AVX-512.
///
/// `pulp` calls closures through `FnOnce`. For a closure that can be called twice the compiler puts another function in
/// between, which is not inlined: the body then runs without vector instructions, several times slower. Calling through
/// `FnMut` needs no such function. The closure must be `#[inline(always)]`.
#[derive(Debug)]
pub struct Inlined<F>(pub F);

impl<T, F: FnMut() -> T> pulp::NullaryFnOnce for Inlined<F> {
    type Output = T;

    #[inline(always)]
    fn call(mut self) -> T {
        (self.0)()
    }
}

/// Runs `body` with the best instructions of the machine. It must be `#[inline(always)]`.
#[inline(always)]
pub fn vectorised<T>(body: impl FnMut() -> T) -> T {
    pulp::Arch::new().dispatch(Inlined(body))
}
