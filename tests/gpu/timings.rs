//! Device time of the problems that upstream publishes for its Hopper backend: the operation alone, on tensors
//! that are in its order, and the whole call of the functional API with its permutations.
//!
//! Configurations are those of upstream's profiler page (float16, batch 1, dilation 1, nothing causal, no extra
//! tokens): 1-D with the default tiles; 2-D with tiles 16x8 and 16x8, 3-D with 2x8x8 and 2x8x8, asked for by
//! name, with the default schedule. Upstream's times are of the attention kernel alone, on an H100.

use super::tensors::{Sizes, Tensors};
use super::*;
use natten_kernels::device::Event;
use natten_kernels::ops::Schedule;
use rayon::prelude::*;

struct Published {
    name: &'static str,
    extents: &'static [usize],
    window: &'static [usize],
    stride: &'static [usize],
    heads: usize,
    /// The tiles of queries and of keys, the same.
    tile: [usize; 3],
    milliseconds: f64,
}

const DIM: usize = 128;

const PUBLISHED: [Published; 4] = [
    Published {
        name: "na1d 32768, window 2048",
        extents: &[32768],
        window: &[2048],
        stride: &[1],
        heads: 1,
        tile: [128, 1, 1],
        milliseconds: 0.0948,
    },
    Published {
        name: "na2d 256x256, window 80x80",
        extents: &[256, 256],
        window: &[80, 80],
        stride: &[1, 1],
        heads: 24,
        tile: [16, 8, 1],
        milliseconds: 16.2,
    },
    Published {
        name: "na3d 30x48x80, window 18x24x24",
        extents: &[30, 48, 80],
        window: &[18, 24, 24],
        stride: &[1, 1, 1],
        heads: 24,
        tile: [2, 8, 8],
        milliseconds: 79.0,
    },
    Published {
        name: "na3d 30x48x80, window 18x24x24, stride 16x8x8",
        extents: &[30, 48, 80],
        window: &[18, 24, 24],
        stride: &[16, 8, 8],
        heads: 24,
        tile: [2, 8, 8],
        milliseconds: 23.4,
    },
];

impl Published {
    fn problem(&self) -> Problem {
        Problem::builder(Dtype::Float16, self.extents)
            .heads(self.heads)
            .dim(DIM)
            .window(self.window)
            .stride(self.stride)
            .build()
            .unwrap()
    }

    /// Floating point operations: two products of every query with the keys of its window; backward five.
    fn operations(&self, direction: Direction) -> f64 {
        let products: usize = match direction {
            Direction::Forward => 2,
            Direction::Backward => 5,
        };
        let tokens: usize = self.extents.iter().product();
        let window: usize = self.window.iter().product();
        2.0 * products as f64 * tokens as f64 * window as f64 * (DIM * self.heads) as f64
    }
}

/// Room for every problem above in the order of every tile, with the padding.
fn room() -> Sizes {
    let tokens = 32 * 48 * 96;
    let rows = tokens * 24;
    Sizes { query: rows * DIM, key: rows * DIM, value: rows * DIM, out: rows * DIM, rows }
}

/// Milliseconds of one call: median and least of many, back to back after a warm-up.
fn measure(device: &Device, run: &mut dyn FnMut() -> Result<(), Error>) -> Result<(f64, f64), Error> {
    for _ in 0..2 {
        run()?;
    }
    let before = Event::record(device)?;
    run()?;
    let once = f64::from(Event::record(device)?.milliseconds_since(&before)?).max(1e-3);
    // Enough calls between two marks that the marks weigh nothing, enough marks for a median.
    let calls = (2.0 / once).clamp(1.0, 20.0) as usize;
    let samples = (500.0 / (once * calls as f64)).clamp(5.0, 100.0) as usize;
    let mut marks = vec![Event::record(device)?];
    for _ in 0..samples {
        for _ in 0..calls {
            run()?;
        }
        marks.push(Event::record(device)?);
    }
    let mut times = Vec::new();
    for pair in marks.windows(2) {
        times.push(f64::from(pair[1].milliseconds_since(&pair[0])?) / calls as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok((times[times.len() / 2], times[0]))
}

/// The table's rows for a problem of no causal axis.
fn rows_for<'a>(
    artifact: &'a Artifact,
    device: &Device,
    family: &str,
    direction: Direction,
    problem: &Problem,
) -> Vec<&'a Kernel> {
    rows(artifact, device, family, direction)
        .into_iter()
        .map(|(kernel, _)| kernel)
        .filter(|kernel| kernel.rank == problem.rank() && kernel.dtype == Some(problem.dtype()))
        .filter(|kernel| kernel.causal == [false; 3] && kernel.max_head_dim == DIM)
        .collect()
}

/// One measured call, printed.
struct Timed<'a> {
    device: &'a Device,
    published: &'a Published,
    tally: Tally,
    best: BTreeMap<String, (f64, String)>,
}

impl Timed<'_> {
    fn add(
        &mut self,
        what: &str,
        direction: Direction,
        how: &str,
        note: &str,
        run: &mut dyn FnMut() -> Result<(), Error>,
    ) {
        self.tally.cases += 1;
        let case = format!("{} {what} {direction} {how}", self.published.name);
        match measure(self.device, run) {
            Ok((median, least)) => {
                let rate = self.published.operations(direction) / median / 1e9;
                println!(
                    "  {what:<22} {direction:<8} {how:<38} {median:9.4} ms (least {least:9.4}) {rate:7.1} TFLOP/s {note}"
                );
                let best =
                    self.best.entry(format!("{what} {direction}")).or_insert((f64::INFINITY, String::new()));
                if median < best.0 {
                    *best = (median, how.to_owned());
                }
            }
            Err(error) => self.tally.failed(&case, &error),
        }
    }
}

/// That a call left nothing but means of the values, which lie between -1 and 1.
fn check_out(tensors: &Tensors<f16>, problem: &Problem, tally: &mut Tally, case: &str) {
    match tensors.out(problem.out_len()) {
        Ok(out) if out.par_iter().all(|x| x.to_f32().abs() <= 1.0) => {}
        Ok(_) => tally.failed(case, &Error::Internal("an output beyond the values, or not a number".into())),
        Err(error) => tally.failed(case, &error),
    }
}

fn time_hopper(artifact: &Artifact, problem: &Problem, tensors: &mut Tensors<f16>, timed: &mut Timed<'_>) {
    let device = timed.device;
    let properties = device.properties();
    let launch = Launch::default();
    let request = |direction| Request { backend: Some(Backend::HopperFna), ..Request::new(direction) };
    for kernel in rows_for(artifact, device, "hopper_fna", Direction::Forward, problem) {
        let direction = Direction::Forward;
        let tiles = hopper::tiles_of(kernel);
        let schedule = Schedule::from_number(kernel.schedule).expect("a known schedule");
        let rank = problem.rank();
        let how = format!("{:?} x {:?} {schedule:?}", &tiles.query[..rank], &tiles.key[..rank]);
        let chosen = match dispatch::choose_from(artifact, problem, &properties, &request(direction)) {
            Ok(chosen) => chosen,
            Err(error) => return timed.tally.failed(timed.published.name, &error),
        };
        let default = chosen.tiles == Some(tiles) && chosen.schedule == Some(schedule);
        let same = tiles.query == timed.published.tile
            && tiles.key == timed.published.tile
            && schedule == Schedule::Cooperative;
        let upstream = format!("<- upstream's configuration, {} ms on an H100", timed.published.milliseconds);
        let note = match (default, same) {
            (true, true) => format!("(default) {upstream}"),
            (true, false) => "(default)".to_owned(),
            (false, true) => upstream,
            (false, false) => String::new(),
        };
        let forward = tensors.forward();
        timed.add("hopper_fna alone", direction, &how, &note, &mut || {
            // SAFETY: the buffers are larger than the problem's tensors in any order and outlive the work.
            unsafe { ops::hopper_na_forward(problem, &tiles, schedule, &forward, &launch) }
        });
        let decision = Decision { tiles: Some(tiles), schedule: Some(schedule), ..chosen };
        timed.add(
            "hopper_fna, whole call",
            direction,
            &how,
            if default { "(default)" } else { "" },
            &mut || {
                // SAFETY: as above.
                unsafe { functional::forward(&decision, problem, &forward, &launch) }
            },
        );
        // Every kernel has its cases elsewhere; these are the numbers that are compared.
        if default || same {
            check_out(tensors, problem, &mut timed.tally, &how);
        }
    }
    for kernel in rows_for(artifact, device, "hopper_fna_bwd", Direction::Backward, problem) {
        let direction = Direction::Backward;
        let tiles = hopper::tiles_of(kernel);
        let rank = problem.rank();
        let how = format!("{:?} x {:?}", &tiles.query[..rank], &tiles.key[..rank]);
        let chosen = match dispatch::choose_from(artifact, problem, &properties, &request(direction)) {
            Ok(chosen) => chosen,
            Err(error) => return timed.tally.failed(timed.published.name, &error),
        };
        let default = chosen.tiles == Some(tiles);
        let note = if default { "(default)" } else { "" };
        let gradients = tensors.backward();
        timed.add("hopper_fna alone", direction, &how, note, &mut || {
            // SAFETY: as above.
            unsafe { ops::hopper_na_backward(problem, &tiles, &gradients, &launch) }
        });
        if default {
            timed.add("hopper_fna, whole call", direction, &how, note, &mut || {
                // SAFETY: as above.
                unsafe { functional::backward(&chosen, problem, &gradients, &launch) }
            });
        }
    }
}

fn time_fna(artifact: &Artifact, problem: &Problem, tensors: &mut Tensors<f16>, timed: &mut Timed<'_>) {
    let direction = Direction::Forward;
    let request = Request { backend: Some(Backend::Fna), ..Request::new(direction) };
    let decision = match dispatch::choose_from(artifact, problem, &timed.device.properties(), &request) {
        Ok(decision) => decision,
        Err(error) => return println!("  fna: {error}"),
    };
    let tiles = decision.tiles.expect("fna has tiles");
    let rank = problem.rank();
    let how = format!("{:?} x {:?}", &tiles.query[..rank], &tiles.key[..rank]);
    let (forward, launch) = (tensors.forward(), Launch::default());
    timed.add("fna", direction, &how, "(default)", &mut || {
        // SAFETY: the buffers are larger than the problem's tensors and outlive the work.
        unsafe { functional::forward(&decision, problem, &forward, &launch) }
    });
    check_out(tensors, problem, &mut timed.tally, "fna");
}

#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn timings() {
    let (device, artifact) = setup();
    let mut tensors = Tensors::<f16>::new(&device, room(), 9500).unwrap();
    let mut failures = Tally::default();
    for published in &PUBLISHED {
        let problem = published.problem();
        println!("{}, {} heads of {DIM}, float16:", published.name, published.heads);
        let mut timed = Timed { device: &device, published, tally: Tally::default(), best: BTreeMap::new() };
        if usable(artifact, &device, Backend::HopperFna) {
            time_hopper(artifact, &problem, &mut tensors, &mut timed);
        }
        time_fna(artifact, &problem, &mut tensors, &mut timed);
        for (what, (median, how)) in &timed.best {
            println!("  best of {what}: {median:.4} ms, {how}");
        }
        failures.cases += timed.tally.cases;
        failures.failures.append(&mut timed.tally.failures);
    }
    failures.finish("timings", 0);
}
