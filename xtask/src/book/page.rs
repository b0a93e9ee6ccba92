//! Turns the Markdown of one chapter into HTML, with anchors at its headings.

use std::fmt::Write;

use pulldown_cmark::{CowStr, Event, Options, Parser, Tag, TagEnd, html};

use super::contents::{Chapter, page_of};

/// A chapter's text.
pub(super) struct Page {
    html: String,
    anchors: Vec<String>,
    /// Links to files, as written.
    links: Vec<String>,
}

impl Page {
    pub(super) fn new(markdown: &str) -> Self {
        let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH;
        let mut events: Vec<Event<'_>> = Parser::new_ext(markdown, options).collect();
        let anchors = add_anchors(&mut events);
        let mut links = Vec::new();
        let mut outside = false;
        events.retain_mut(|event| match event {
            Event::Start(Tag::Link { dest_url, .. }) if !dest_url.contains("://") => {
                links.push(dest_url.to_string());
                // A file of the tree is not part of the book: its name stays, without a link.
                outside = dest_url.split('#').next().is_some_and(|path| path.contains('/'));
                *dest_url = CowStr::from(in_html(dest_url));
                !outside
            }
            Event::End(TagEnd::Link) => !std::mem::take(&mut outside),
            _ => true,
        });
        let mut html = String::new();
        html::push_html(&mut html, events.into_iter());
        Self { html, anchors, links }
    }

    pub(super) fn links(&self) -> impl Iterator<Item = &str> {
        self.links.iter().map(String::as_str)
    }

    pub(super) fn has_anchor(&self, anchor: &str) -> bool {
        self.anchors.iter().any(|known| known == anchor)
    }
}

/// Turns a link to a chapter into one to its page.
fn in_html(link: &str) -> String {
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    let path = if path.ends_with(".md") && !path.contains('/') { page_of(path) } else { path.to_owned() };
    anchor.map_or(path.clone(), |anchor| format!("{path}#{anchor}"))
}

/// Gives each heading an anchor made of its words, as GitHub does, and returns the anchors.
fn add_anchors(events: &mut [Event<'_>]) -> Vec<String> {
    let mut anchors = Vec::new();
    let mut place = 0;
    while place < events.len() {
        if matches!(events[place], Event::Start(Tag::Heading { .. })) {
            let end = events[place..].iter().position(|event| matches!(event, Event::End(TagEnd::Heading(_))));
            let end = place + end.unwrap_or(0);
            let words = events[place..end].iter().filter_map(|event| match event {
                Event::Text(text) | Event::Code(text) => Some(text.as_ref()),
                _ => None,
            });
            let anchor = slug(&words.collect::<String>());
            if let Event::Start(Tag::Heading { id, .. }) = &mut events[place] {
                *id = Some(CowStr::from(anchor.clone()));
            }
            anchors.push(anchor);
        }
        place += 1;
    }
    anchors
}

fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// Returns a whole page: contents beside the text, links to the neighbouring chapters below it.
pub(super) fn document(
    chapters: &[Chapter],
    this: &Chapter,
    page: &Page,
    (before, after): (Option<&Chapter>, Option<&Chapter>),
) -> String {
    let mut contents = String::new();
    for chapter in chapters {
        // Writing to a String cannot fail, here and below.
        if let Some(part) = &chapter.part {
            let _ = writeln!(contents, "<p class=\"part\">{}</p>", escaped(part));
        }
        let here = if chapter == this { " aria-current=\"page\"" } else { "" };
        let (depth, link, title) = (chapter.depth, chapter.html(), escaped(&chapter.title));
        let _ = writeln!(contents, "<a class=\"depth-{depth}\" href=\"{link}\"{here}>{title}</a>");
    }
    let mut ways = String::new();
    for (chapter, arrow) in [(before, "←"), (after, "→")] {
        if let Some(chapter) = chapter {
            let _ = writeln!(ways, "<a href=\"{}\">{arrow} {}</a>", chapter.html(), escaped(&chapter.title));
        }
    }
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width\">\n<title>{} – Palimpsest</title>\n<link rel=\"stylesheet\" \
         href=\"page.css\">\n<nav>\n{contents}</nav>\n<main>\n{}<footer>\n{ways}</footer>\n</main>\n</html>\n",
        escaped(&this.title),
        page.html
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_have_anchors_and_links_lead_to_pages() {
        let page =
            Page::new("# An *attacker* who can `write` anywhere\n\n[a](run.md#other-threads) [b](https://x.md)\n");
        assert!(page.has_anchor("an-attacker-who-can-write-anywhere"), "{:?}", page.anchors);
        assert!(page.html.contains("href=\"run.html#other-threads\""), "{}", page.html);
        assert!(page.html.contains("href=\"https://x.md\""), "{}", page.html);
        assert_eq!(page.links().collect::<Vec<_>>(), ["run.md#other-threads"]);
        let outside = Page::new("see [the tests](../../a/b.rs) and [run](run.md)\n");
        assert!(outside.html.contains("see the tests and <a href=\"run.html\">"), "{}", outside.html);
        assert_eq!(outside.links().count(), 2, "it is still looked for");
    }
}
