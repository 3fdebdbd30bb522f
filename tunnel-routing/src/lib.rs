//! The request routing service.

pub mod config;
pub mod dry_run;
pub mod explain;
pub mod host;
pub mod matcher;
pub mod metrics;
pub mod odd;
pub mod own_answer;
pub mod pattern;
pub mod request;
pub mod rewrite;
pub mod summary;
pub mod template;
pub mod upstream;
pub mod url;

mod leads;
mod route;
mod table;

pub use self::leads::LeadParts;
pub use self::own_answer::AnswerBody;
pub use self::route::Route;
pub use self::table::{CHECKER, Routes};
