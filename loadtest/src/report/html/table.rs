//! Tables of the page. Texts are HTML already.

/// A head of a column, and whether its cells are figures, which stand at the right.
pub(super) type Column = (String, bool);

/// A cell: further attributes, and its HTML.
#[derive(Default)]
pub(super) struct Cell {
    pub(super) attributes: String,
    pub(super) html: String,
}

impl From<String> for Cell {
    fn from(html: String) -> Self {
        Self {
            html,
            ..Self::default()
        }
    }
}

/// Rows that belong together, under a name where there are several groups.
#[derive(Default)]
pub(super) struct Group {
    pub(super) name: Option<String>,
    pub(super) rows: Vec<Vec<Cell>>,
}

/// A table that scrolls if it is wider than the page. The first cell of a row is its name; rows that are short
/// are filled up, and what is beyond the columns is left out.
pub(super) fn table(class: &str, label: &str, columns: &[Column], groups: &[Group]) -> String {
    let aligned = |figure: bool| if figure { " class=\"figure\"" } else { "" };
    let head: String = (columns.iter())
        .map(|(name, figure)| format!("<th scope=\"col\"{}>{name}</th>", aligned(*figure)))
        .collect();
    let none = Cell::default();
    let row = |cells: &Vec<Cell>| {
        let cells = columns.iter().enumerate().map(|(index, (_, figure))| {
            let Cell { attributes, html } = cells.get(index).unwrap_or(&none);
            match index {
                0 => format!("<th scope=\"row\">{html}</th>"),
                _ => format!("<td{}{attributes}>{html}</td>", aligned(*figure)),
            }
        });
        format!("<tr>{}</tr>", cells.collect::<String>())
    };
    let group = |Group { name, rows }: &Group| {
        let rows: String = rows.iter().map(row).collect();
        let name = name.as_ref().map_or_else(String::new, |name| {
            let wide = columns.len();
            format!("<tr class=\"run\"><th scope=\"rowgroup\" colspan=\"{wide}\">{name}</th></tr>")
        });
        format!("<tbody>{name}{rows}</tbody>")
    };
    let groups: String = groups.iter().map(group).collect();
    format!(
        "<div class=\"scroll {class}\" tabindex=\"0\" role=\"region\" aria-label=\"{label}\">\
         <table><thead><tr>{head}</tr></thead>{groups}</table></div>"
    )
}
