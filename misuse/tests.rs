//! Misuse that must not compile, each case with the compiler's message.

#[test]
fn misuses_do_not_compile() {
    trybuild::TestCases::new().compile_fail("cases/*.rs");
}
