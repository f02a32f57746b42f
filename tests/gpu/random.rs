//! Random problems of every kind, by whichever backend the dispatcher chooses, against the CPU reference.

use super::*;

const PROBLEMS: u64 = 500;
/// Problem `n` is made from seed `FIRST_SEED + n`, and so are its tensors.
const FIRST_SEED: u64 = 70_000;

/// Window, stride, dilation and causal axes of any kind; head dims that some backends take and others do not;
/// one in ten each with grouped heads, extra tokens, windows of everything, another head dim of the values.
fn problem(random: &mut Random) -> Problem {
    let rank = random.range(1, 3);
    let causal: Vec<bool> = (0..rank).map(|_| random.range(0, 2) == 0).collect();
    let dtype =
        random.pick(&[Dtype::Float16, Dtype::Float16, Dtype::Bfloat16, Dtype::Bfloat16, Dtype::Float32]);
    let dim = random.pick(&[32, 32, 64, 64, 64, 128, 128, 128, 256, 256, 96, 192, 40, 24, 8, 12, 7]);
    let heads = random.range(1, 3);
    let kind = random.range(0, 9);
    let largest = [900, 32, 11][rank - 1];
    let smallest = [40, 9, 5][rank - 1];
    let (mut extents, mut window, mut stride, mut dilation) = (vec![], vec![], vec![], vec![]);
    for _ in 0..rank {
        let extent = random.range(smallest, largest);
        let reach = match random.range(0, 3) {
            0 => extent,
            1 => extent / 2,
            _ => (extent / 3).min(40),
        };
        let w = if kind == 0 { extent } else { random.range(2, reach.max(2)) };
        extents.push(extent);
        window.push(w);
        stride.push(if random.range(0, 1) == 0 { 1 } else { random.range(1, w) });
        dilation.push(if random.range(0, 1) == 0 { 1 } else { random.range(1, (extent / w).min(4)) });
    }
    let builder = Problem::builder(dtype, &extents)
        .batch(random.range(1, 2))
        .heads(if kind == 1 { 2 * heads } else { heads })
        .heads_kv(heads)
        .dim(dim)
        .dim_value(if kind == 3 { random.pick(&[8, 32, 72, 128]) } else { dim })
        .extra_kv(if kind == 2 { random.range(1, 40) } else { 0 })
        .window(&window);
    let builder = if kind == 0 {
        // Dense attention, if nothing else is asked for: in 1-D causal or not.
        builder.causal(&vec![rank == 1 && causal[0]; rank])
    } else {
        builder.stride(&stride).dilation(&dilation).causal(&causal)
    };
    builder.build().unwrap()
}

/// Backend, pass, rank, tiles and schedule of a choice.
fn key(decision: &Decision, rank: usize) -> String {
    let tiles = decision.tiles.map(|tiles| format!(" {:?} x {:?}", tiles.query, tiles.key));
    let schedule = decision.schedule.map(|schedule| format!(" {schedule:?}"));
    format!(
        "{} {} {rank}-D{}{}",
        decision.backend,
        decision.direction,
        tiles.unwrap_or_default(),
        schedule.unwrap_or_default()
    )
}

#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn random_problems_by_the_dispatcher_match_the_cpu() {
    let (device, artifact) = setup();
    let mut tally = Tally::default();
    let mut chosen: BTreeMap<String, usize> = BTreeMap::new();
    for number in 0..PROBLEMS {
        let seed = FIRST_SEED + number;
        tally.note = format!(" seed {seed}");
        let mut random = Random::new(seed);
        let problem = problem(&mut random);
        for direction in [Direction::Forward, Direction::Backward] {
            let request = Request::new(direction);
            match dispatch::choose_from(artifact, &problem, &device.properties(), &request) {
                Ok(decision) => {
                    *chosen.entry(key(&decision, problem.rank())).or_default() += 1;
                    chosen_case((&device, artifact), &problem, decision, direction, &mut random, &mut tally);
                }
                // Without the backend that takes everything, not everything can run; the reason must say so.
                Err(Error::Unsupported(reason)) if !is_built(artifact, Backend::Reference) => {
                    assert!(reason.contains("no backend can run this problem"), "{reason}");
                    *chosen.entry(format!("none {direction}")).or_default() += 1;
                }
                Err(error) => tally.failed(&describe(&problem), &error),
            }
        }
    }
    for (key, times) in &chosen {
        println!("  chosen {times:4} times: {key}");
    }
    let last = FIRST_SEED + PROBLEMS - 1;
    let title = format!("{PROBLEMS} random problems, forward and backward, seeds {FIRST_SEED} to {last}");
    tally.finish(&title, 1);
}

/// The problems are of every kind that the module promises, each often enough to mean something.
#[test]
fn the_random_problems_are_of_every_kind() {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for number in 0..PROBLEMS {
        let problem = problem(&mut Random::new(FIRST_SEED + number));
        let any = |test: fn(&natten_kernels::Axis) -> bool| problem.axes().iter().any(test);
        let full = problem.axes().iter().all(|axis| axis.window == axis.extent);
        for (name, is) in [
            (format!("{}-D", problem.rank()), true),
            (problem.dtype().to_string(), true),
            (format!("head dim {}", problem.dim()), true),
            ("causal".into(), any(|axis| axis.causal)),
            ("strided".into(), any(|axis| axis.stride > 1)),
            ("dilated".into(), any(|axis| axis.dilation > 1)),
            ("grouped heads".into(), problem.heads() != problem.heads_kv()),
            ("extra tokens".into(), problem.extra_kv() > 0),
            ("two head dims".into(), problem.dim() != problem.dim_value()),
            ("windows of everything".into(), full),
        ] {
            *kinds.entry(name).or_default() += usize::from(is);
        }
    }
    assert_eq!(kinds.len(), 3 + 3 + 11 + 7, "{kinds:?}");
    assert!(kinds.values().all(|times| *times >= 10), "{kinds:?}");
}
