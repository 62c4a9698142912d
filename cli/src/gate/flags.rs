//! The flags of the table of gates.

use super::table::{Kind, ROWS, Rule, Value, parse};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

/// Values that the command line gives, by row of the table.
pub struct Flags(pub Vec<(usize, Value)>);

fn argument(i: usize) -> Arg {
    let row = &ROWS[i];
    let demo = row.flag.starts_with("llm-demo-");
    let heading = match row.rule {
        _ if demo => "Gates of llm_demo",
        Rule::Setting => "Settings of gates",
        _ => "Gates",
    };
    let default = if row.default.is_empty() { String::new() } else { format!(" [default: {}]", row.default) };
    let suites = super::table::SUITES.iter().zip(row.suites).filter(|(_, value)| !value.is_empty());
    let suites: Vec<String> = suites.map(|(suite, value)| format!("{suite} {value}")).collect();
    let suites = if suites.is_empty() { String::new() } else { format!(" [--suite: {}]", suites.join(", ")) };
    let arg = Arg::new(row.flag)
        .long(row.flag)
        .help(format!("{}{default}{suites}", row.meaning))
        .help_heading(heading)
        .overrides_with(row.flag);
    let value = move |text: &str| parse(&ROWS[i], text);
    match row.kind {
        Kind::Number => arg.value_name("N").allow_negative_numbers(true).value_parser(value),
        Kind::Switch => arg
            .value_name("BOOL")
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_parser(value),
        Kind::Word(words) => arg.value_name("WORD").value_parser(PossibleValuesParser::new(words).map(Value::Word)),
    }
}

impl Args for Flags {
    fn augment_args(command: Command) -> Command {
        command.args((0..ROWS.len()).map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let value = |(i, row): (usize, &super::table::Row)| Some((i, matches.get_one::<Value>(row.flag)?.clone()));
        Ok(Flags(ROWS.iter().enumerate().filter_map(value).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
