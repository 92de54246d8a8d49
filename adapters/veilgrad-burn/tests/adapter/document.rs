//! docs/burn.md shows lines of the compiled examples.

#[test]
fn the_document_shows_the_lines_of_the_examples() {
    let document = include_str!("../../../../docs/burn.md");
    let before = include_str!("../../examples/mlp_public.rs");
    let after = include_str!("../../examples/mlp_private.rs");
    let mut blocks = 0;
    for block in document.split("```diff\n").skip(1) {
        let block = block.split("```").next().unwrap_or_default();
        let side = |sign: char| -> String {
            let of = |line: &&str| line.starts_with([sign, ' ']) || line.is_empty();
            let lines = block.lines().filter(of).map(|line| line.get(1..).unwrap_or(""));
            lines.map(|line| format!("{line}\n")).collect()
        };
        assert!(before.contains(&side('-')), "before:\n{}", side('-'));
        assert!(after.contains(&side('+')), "after:\n{}", side('+'));
        blocks += 1;
    }
    assert_eq!(blocks, 3);
}
