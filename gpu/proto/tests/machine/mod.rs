//! A machine for the few instructions of PTX that the kernels use.
//!
//! Threads of a block talk to one another across barriers only, so between these they run one behind the other. Loads
//! and stores are checked: inside the memory, and aligned as a device demands.

use std::collections::BTreeMap;

/// Most instructions of one thread; the kernel loops, and a test is to end.
const STEPS_MAX: usize = 1_000_000;

/// An instruction: its guard, its name with types, its operands.
#[derive(Clone, Debug)]
struct Instruction {
    guard: Option<String>,
    name: Vec<String>,
    operands: Vec<String>,
}

/// The body of a kernel.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    instructions: Vec<Instruction>,
    labels: BTreeMap<String, usize>,
    /// What blocks share, by its place, and how much that is.
    shared: BTreeMap<String, u64>,
    shared_len: usize,
    /// The tables of the module.
    pub(crate) tables: Vec<u8>,
}

/// How a kernel is started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
}

/// Memory and the kernel's parameter.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) memory: Vec<u8>,
    pub(crate) parameters: Vec<u8>,
}

impl Program {
    pub(crate) fn parse(text: &str) -> Self {
        let (head, body) = text.split_once(".entry").expect("an entry");
        let (_, body) = body.split_once('{').expect("a body");
        let mut program = Self {
            instructions: Vec::new(),
            labels: BTreeMap::new(),
            shared: BTreeMap::new(),
            shared_len: 0,
            tables: tables(head),
        };
        for line in body.lines() {
            let line = line.split("//").next().expect("a line").trim();
            if line.is_empty() || line == "}" || line.starts_with(".reg") {
                continue;
            }
            if let Some(shared) = line.strip_prefix(".shared .align 16 .b32 ") {
                let (name, len) = shared.split_once('[').expect("a name");
                let words: usize = len.trim_end_matches("];").parse().expect("a length");
                let at = program.shared_len as u64;
                program.shared.insert(name.to_owned(), at);
                program.shared_len += 4 * words;
                continue;
            }
            if let Some(label) = line.strip_suffix(':') {
                let at = program.instructions.len();
                program.labels.insert(label.to_owned(), at);
                continue;
            }
            program.instructions.push(instruction(line));
        }
        program
    }
}

/// The numbers of `tables[...] = {...}`, as bytes.
fn tables(head: &str) -> Vec<u8> {
    let Some((_, tables)) = head.split_once("] = {") else {
        return Vec::new();
    };
    let (tables, _) = tables.split_once('}').expect("an end");
    let words = tables.split(", ").map(|word| {
        let digits = word.strip_prefix("0x").expect("a number");
        u32::from_str_radix(digits, 16).expect("a number")
    });
    words.flat_map(u32::to_le_bytes).collect()
}

fn instruction(line: &str) -> Instruction {
    let line = line.strip_suffix(';').expect("an instruction ends");
    let (guard, rest) = match line.strip_prefix('@') {
        Some(guarded) => {
            let (guard, rest) = guarded.split_once(' ').expect("a guarded instruction");
            (Some(guard.to_owned()), rest)
        }
        None => (None, line),
    };
    let (name, operands) = rest.split_once(' ').unwrap_or((rest, ""));
    Instruction {
        guard,
        name: name.split('.').map(str::to_owned).collect(),
        operands: split_operands(operands),
    }
}

/// At commas that are not inside braces.
fn split_operands(text: &str) -> Vec<String> {
    let (mut depth, mut all, mut one) = (0, Vec::new(), String::new());
    for character in text.chars() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                all.push(std::mem::take(&mut one).trim().to_owned());
                continue;
            }
            _ => {}
        }
        one.push(character);
    }
    all.push(one.trim().to_owned());
    all.retain(|operand| !operand.is_empty());
    all
}

impl Machine {
    /// Runs all blocks. The tables of the program lie behind the memory meanwhile.
    pub(crate) fn run(&mut self, program: &Program, launch: Launch) {
        let len = self.memory.len();
        let tables_at = len.next_multiple_of(256);
        self.memory.resize(tables_at, 0);
        self.memory.extend_from_slice(&program.tables);
        for block in 0..launch.blocks {
            let mut shared = vec![0xa5; program.shared_len];
            let thread = |index| Thread {
                registers: BTreeMap::new(),
                special: [index, launch.threads, block, launch.blocks],
                at: 0,
                tables_at: tables_at as u64,
                is_over: false,
            };
            let mut threads: Vec<Thread> = (0..launch.threads).map(thread).collect();
            while threads.iter().any(|thread| !thread.is_over) {
                for thread in &mut threads {
                    thread.run(self, &mut shared, program);
                }
                let over = threads.iter().filter(|thread| thread.is_over).count();
                assert!(over == 0 || over == threads.len(), "all come to a barrier");
            }
        }
        assert!(self.memory[tables_at..] == program.tables, "tables stay");
        self.memory.truncate(len);
    }

    fn parameter(&self, at: &str, len: usize) -> u64 {
        let at = at.strip_prefix("[job+").and_then(|at| at.strip_suffix(']'));
        let at: usize = at.expect("a parameter").parse().expect("its place");
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(&self.parameters[at..at + len]);
        u64::from_le_bytes(bytes)
    }
}

fn read(memory: &[u8], at: u64, len: usize) -> u64 {
    let at = usize::try_from(at).expect("an address");
    assert!(at.is_multiple_of(len), "a load of {len} at {at}");
    let mut bytes = [0; 8];
    bytes[..len].copy_from_slice(&memory[at..at + len]);
    u64::from_le_bytes(bytes)
}

fn write(memory: &mut [u8], at: u64, len: usize, value: u64) {
    let at = usize::try_from(at).expect("an address");
    memory[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
}

/// One thread of a kernel.
struct Thread {
    registers: BTreeMap<String, u64>,
    /// Its index, threads of a block, its block, blocks.
    special: [u32; 4],
    /// Its next instruction.
    at: usize,
    /// Where the module's tables lie.
    tables_at: u64,
    is_over: bool,
}

impl Thread {
    /// Goes on until the next barrier, or the end.
    fn run(&mut self, machine: &mut Machine, shared: &mut [u8], program: &Program) {
        for _ in 0..STEPS_MAX {
            let instruction = &program.instructions[self.at];
            self.at += 1;
            let guard = instruction.guard.as_ref();
            if guard.is_some_and(|guard| self.value(guard) == 0) {
                continue;
            }
            match instruction.name[0].as_str() {
                "ret" => {
                    self.is_over = true;
                    return;
                }
                "bar" => return,
                "bra" => self.at = program.labels[&instruction.operands[0]],
                "ld" | "st" | "red" => self.access(machine, shared, instruction),
                "mov" if program.shared.contains_key(&instruction.operands[1]) => {
                    let at = program.shared[&instruction.operands[1]];
                    self.set(&instruction.operands[0], at);
                }
                "mov" if instruction.operands[1] == "tables" => {
                    self.set(&instruction.operands[0], self.tables_at);
                }
                _ => self.compute(instruction),
            }
        }
        unreachable!("the kernel does not end");
    }

    fn value(&self, operand: &str) -> u64 {
        let number = operand.strip_prefix("0x");
        let number = number.map(|digits| u64::from_str_radix(digits, 16).expect("a number"));
        if let Some(number) = number.or_else(|| operand.parse().ok()) {
            return number;
        }
        let special = ["%tid.x", "%ntid.x", "%ctaid.x", "%nctaid.x"];
        match special.iter().position(|name| *name == operand) {
            Some(index) => u64::from(self.special[index]),
            None => self.registers[operand],
        }
    }

    fn set(&mut self, register: &str, value: u64) {
        assert!(register.starts_with('%'), "{register}");
        self.registers.insert(register.to_owned(), value);
    }

    /// The address of `[register+offset]`.
    fn address(&self, operand: &str) -> u64 {
        let inside = operand
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        let inside = inside.expect("an address");
        let (base, offset) = inside.split_once('+').unwrap_or((inside, "0"));
        self.value(base) + self.value(offset)
    }

    fn access(&mut self, machine: &mut Machine, shared: &mut [u8], instruction: &Instruction) {
        let Instruction { name, operands, .. } = instruction;
        let len = match name.last().map(String::as_str) {
            Some("u8") => 1,
            Some("u32" | "b32") => 4,
            Some("u64") => 8,
            other => unreachable!("a type {other:?}"),
        };
        if name[1] == "param" {
            let value = machine.parameter(&operands[1], len);
            return self.set(&operands[0], value);
        }
        let memory = match name[1].as_str() {
            "shared" => shared,
            _ => &mut machine.memory[..],
        };
        let is_load = name[0] == "ld";
        let (registers, address) = match is_load {
            true => (&operands[0], &operands[1]),
            false => (&operands[1], &operands[0]),
        };
        let registers: Vec<&str> = registers
            .trim_matches(['{', '}'])
            .split(',')
            .map(str::trim)
            .collect();
        let at = self.address(address);
        let whole = (registers.len() * len) as u64;
        assert!(at.is_multiple_of(whole), "{whole} bytes at {at}");
        for (index, register) in registers.into_iter().enumerate() {
            let at = at + (index * len) as u64;
            match (is_load, name[0].as_str()) {
                (true, _) => self.set(register, read(memory, at, len)),
                (false, "red") => {
                    assert_eq!(name[2], "xor");
                    let sum = read(memory, at, len) ^ self.value(register);
                    write(memory, at, len, sum);
                }
                (false, _) => write(memory, at, len, self.value(register)),
            }
        }
    }

    fn compute(&mut self, instruction: &Instruction) {
        let Instruction { name, operands, .. } = instruction;
        let words: Vec<&str> = name.iter().map(String::as_str).collect();
        let of = |index: usize| self.value(&operands[index]);
        let is_long = words.last() == Some(&"u64");
        let value = match words.as_slice() {
            ["mov", "u32"] | ["cvt", "u64", "u32"] | ["cvta", "to", "global", "u64"] => of(1),
            ["and", "b32"] => of(1) & of(2),
            ["xor", "b32"] => of(1) ^ of(2),
            ["shr", "u32"] => of(1) >> of(2),
            ["shr", "s32"] => (sign_extended(of(1)) >> of(2)).cast_unsigned(),
            ["shl", "b32"] => of(1) << of(2),
            ["sub", "u32"] => of(1).wrapping_sub(of(2)),
            ["add", _] => of(1).wrapping_add(of(2)),
            ["mul", "lo", "u32"] | ["mul", "wide", "u32"] => of(1).wrapping_mul(of(2)),
            ["mad", "lo", _] => of(1).wrapping_mul(of(2)).wrapping_add(of(3)),
            ["div", "u32"] => of(1) / of(2),
            ["rem", "u32"] => of(1) % of(2),
            ["setp", "ge", "u32"] => u64::from(of(1) >= of(2)),
            ["setp", "eq", "u32"] => u64::from(of(1) == of(2)),
            other => unreachable!("an instruction {other:?}"),
        };
        let is_wide = is_long || words.contains(&"wide") || words[0] == "cvt";
        let kept = if is_wide { value } else { value & 0xffff_ffff };
        self.set(&operands[0], kept);
    }
}

/// 32 bits as a number with a sign.
fn sign_extended(bits: u64) -> i64 {
    i64::from(u32::try_from(bits).expect("32 bits").cast_signed())
}
