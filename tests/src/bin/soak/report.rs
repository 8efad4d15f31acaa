//! The result: a table for people, JSON for machines.

use lodge_tests::footprint::Footprint;
use serde_json::{Value, json};

use crate::args::Format;
use crate::rounds::Record;
use crate::slope::{self, Slope, Verdict};

/// Prints it; whether every slope is within its bound.
pub(crate) fn print(record: &Record, format: &Format) -> bool {
    let slopes = slope::all(record);
    match format {
        Format::Table => table(record, &slopes),
        Format::Json => println!("{:#}", json_of(record, &slopes)),
    }
    slopes.iter().all(|slope| slope.verdict != Verdict::Above)
}

fn table(record: &Record, slopes: &[Slope]) {
    println!(
        "{:<24} {:>9} {:>9} {:>9} {:>12} {:>12} {:>12}",
        "at rest", "first", "last", "most busy", "slope/h", "slope/1000", "bound/1000"
    );
    for slope in slopes {
        println!(
            "{:<24} {:>9} {:>9} {:>9} {:>12.2} {:>12.3} {:>12.1}  {}",
            slope.name,
            slope.first,
            slope.last,
            slope.most,
            slope.per_hour,
            slope.per_1000_cycles,
            slope.bound.per_1000_cycles,
            word(slope)
        );
    }
    let (seconds, cycles, kills) = totals(record);
    println!(
        "{seconds:.0} s, {} operations, {cycles} cycles (create … delete), {} freezes, {kills} kills of the daemon, \
         seed {}",
        record.operations, record.freezes, record.seed
    );
}

fn word(slope: &Slope) -> &'static str {
    match slope.verdict {
        Verdict::Fine => "fine",
        Verdict::WithinNoise => "fine: growth within noise",
        Verdict::Above => "ABOVE ITS BOUND",
    }
}

/// Seconds, cycles, kills.
fn totals(record: &Record) -> (f64, u64, u64) {
    let last = record.rests.last();
    last.map_or((0.0, 0, 0), |last| {
        (last.at.as_secs_f64(), last.cycles, last.kills)
    })
}

fn json_of(record: &Record, slopes: &[Slope]) -> Value {
    let (seconds, cycles, kills) = totals(record);
    let rests = record.rests.iter().map(|rest| {
        json!({
            "seconds": rest.at.as_secs_f64(), "cycles": rest.cycles, "kills": rest.kills, "used": figures(&rest.used),
        })
    });
    let slopes = slopes.iter().map(|slope| {
        json!({
            "name": slope.name, "first": slope.first, "last": slope.last, "most": slope.most,
            "per_hour": slope.per_hour, "per_1000_cycles": slope.per_1000_cycles,
            "bound_per_1000_cycles": slope.bound.per_1000_cycles, "verdict": word(slope),
        })
    });
    json!({
        "seed": record.seed, "seconds": seconds, "operations": record.operations, "cycles": cycles,
        "freezes": record.freezes, "kills": kills, "slopes": slopes.collect::<Vec<_>>(),
        "rests": rests.collect::<Vec<_>>(), "busy": record.busy.iter().map(figures).collect::<Vec<_>>(),
    })
}

fn figures(used: &Footprint) -> Value {
    let named = Footprint::FIGURES.iter();
    named
        .map(|(name, figure)| ((*name).to_owned(), json!(figure(used))))
        .collect::<serde_json::Map<_, _>>()
        .into()
}
