//! What all pages are made of: one self-contained document, large numbers, tables of facts, figures.

use std::fmt::Write;

use super::chart::escape;

/// The style sheet of all pages.
pub(crate) const STYLE: &str = "
:root{--ink:#1b1f24;--soft:#57606a;--line:#d0d7de;--paper:#fff;--card:#f6f8fa;--blue:#1f5fbf;--red:#b42318}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--line:#3d444d;--paper:#0d1117;
--card:#161b22;--blue:#6ea8fe;--red:#ff8a80}}
*{box-sizing:border-box}
body{font:16px/1.55 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:0 auto;
max-width:72rem;padding:1.5rem 1rem 4rem}
h1{font-size:1.6rem;margin:.2em 0}h2{font-size:1.15rem;margin:2.2em 0 .5em}
p,pre,table{max-width:48rem}p.lead{color:var(--soft);margin:.2em 0 1.4em}
.numbers{display:grid;grid-template-columns:repeat(auto-fit,minmax(10rem,1fr));gap:.8rem}
.number{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.8rem 1rem}
.number b{display:block;font-size:1.5rem;line-height:1.2}.number b small{display:block;font-size:.95rem;font-weight:400}.number span{color:var(--soft);font-size:.85rem}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,20rem),1fr));gap:1rem 2rem}
figure{margin:0 0 1rem}p,td{overflow-wrap:anywhere}figcaption{font-size:.9rem;color:var(--soft);margin-bottom:.3rem}
a{color:var(--blue)}svg{width:100%;height:auto;display:block}
svg text{font:14px system-ui,sans-serif;fill:var(--soft)}svg .name{fill:var(--ink)}
svg .grid{stroke:var(--line)}svg .tick,svg .axis{stroke:var(--soft)}
svg .line{fill:none;stroke:var(--blue);stroke-width:2.5}
svg .beside{fill:none;stroke:var(--soft);stroke-dasharray:5 5}svg rect{fill:var(--blue)}svg .on{fill:var(--paper)}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.92rem}
th,td{text-align:left;padding:.35rem .8rem .35rem 0;border-bottom:1px solid var(--line);vertical-align:top}
th:last-child,td:last-child{padding-right:0}
.facts th{font-weight:400;color:var(--soft);white-space:nowrap}.facts td{white-space:normal}
pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.8rem 1rem;font-size:.88rem}
svg .whisker{stroke:var(--ink);stroke-width:1.5}
td:first-child,.w{white-space:nowrap}td.n,th.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
.warning{border:2px solid var(--red);color:var(--red);border-radius:8px;padding:.8rem 1rem;font-weight:600}
.stamp{border:2px solid var(--blue);border-radius:8px;padding:.8rem 1rem;font-weight:600}
pre{white-space:pre-wrap}code{overflow-wrap:anywhere}
@media (max-width:30rem){body{padding:1rem .8rem 3rem}table{font-size:.8rem}th,td{padding-right:.5rem}
.facts tr{display:block;padding:.3rem 0;border-bottom:1px solid var(--line)}
.facts th,.facts td{display:block;border:0;padding:0}}
@media print{body{max-width:none;padding:0;font-size:11pt}figure,.number,tr{break-inside:avoid}
:root{--ink:#000;--soft:#444;--line:#bbb;--paper:#fff;--card:#fff;--blue:#1f5fbf}}
";

/// A self-contained page.
pub(crate) fn document(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>{}</title>\n<style>{STYLE}</style></head>\n<body>\n{body}</body>\n</html>\n",
        escape(title)
    )
}

/// Numbers in large type, with their names. What follows ± is smaller.
pub(super) fn numbers(body: &mut String, cards: &[(String, String)]) {
    body.push_str("<div class=\"numbers\">\n");
    for (value, name) in cards {
        let (value, error) = value.split_once(" ± ").unwrap_or((value, ""));
        let (value, name) = (escape(value), escape(name));
        let error = match error {
            "" => String::new(),
            error => format!(" <small>± {}</small>", escape(error)),
        };
        let _ =
            writeln!(body, "<div class=\"number\"><b>{value}{error}</b><span>{name}</span></div>");
    }
    body.push_str("</div>\n");
}

/// Names and values as a table with row headings.
pub(super) fn facts(body: &mut String, rows: &[(&str, String)]) {
    body.push_str("<table class=\"facts\">\n");
    for (name, value) in rows {
        let (name, value) = (escape(name), escape(value));
        let _ = writeln!(body, "<tr><th scope=\"row\">{name}</th><td>{value}</td></tr>");
    }
    body.push_str("</table>\n");
}

/// A chart with its caption; nothing if there is no chart.
pub(crate) fn figure(body: &mut String, caption: &str, svg: &str) {
    if !svg.is_empty() {
        let caption = escape(caption);
        let _ = writeln!(body, "<figure><figcaption>{caption}</figcaption>\n{svg}</figure>");
    }
}
