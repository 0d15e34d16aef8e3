#include "reshard/cli/documents.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>

namespace reshard::cli {
namespace {

constexpr std::size_t kHelpColumns = 80;
constexpr std::string_view kProgramSummary = "distributed checkpoints, on any mesh";
constexpr std::string_view kProgramText =
    "reshard reads, checks and cleans up distributed checkpoints: state dicts whose tensors are "
    "cut "
    "over many ranks. PATH is a checkpoint directory, PATH@ID one snapshot in it.";
constexpr std::string_view kExitText =
    "0: yes, or done. 1: the answer is no (damaged, none found). 2: could not find out, failed, or "
    "wrong usage. Results go to stdout, everything else to stderr.";

/// One row of an option table.
struct OptionRow {
  std::vector<std::string> names;  // "--key", or "PATH" for a positional one
  std::string value;               // "GLOB", empty for a flag
  std::string text;
  bool positional = false;
  bool required = false;
  bool repeated = false;
};

std::string UpperCase(std::string text) {
  for (char& c : text) {
    c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return text;
}

std::vector<OptionRow> RowsOf(const CLI::App& app) {
  std::vector<OptionRow> rows;
  for (const CLI::Option* option : app.get_options()) {
    OptionRow row;
    row.text = option->get_description();
    row.required = option->get_required();
    row.positional = option->get_positional();
    row.repeated = option->get_items_expected_max() > 1;
    if (row.positional) {
      row.names = {UpperCase(option->get_single_name())};
    } else {
      for (const std::string& name : option->get_snames()) {
        row.names.push_back("-" + name);
      }
      for (const std::string& name : option->get_lnames()) {
        row.names.push_back("--" + name);
      }
      row.value = option->get_items_expected_max() == 0 ? "" : ValueName(*option);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string Synopsis(const BoundCommand& command) {
  std::string out = "reshard " + command.command->text().name + " [OPTIONS]";
  for (const OptionRow& row : RowsOf(*command.app)) {
    if (row.positional) {
      const std::string name = row.names[0] + (row.repeated ? "..." : "");
      out += row.required ? " " + name : " [" + name + "]";
    } else if (row.required) {
      out += fmt::format(" {} {}", row.names.back(), row.value);
    }
  }
  return out;
}

/// Words filled into lines, each indented.
std::string Fill(std::string_view text, std::size_t indent) {
  std::string out;
  std::string line(indent, ' ');
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    if (line.size() > indent && line.size() + 1 + word.size() > kHelpColumns) {
      out += line + "\n";
      line.assign(indent, ' ');
    }
    line += line.size() > indent ? " " : "";
    line += word;
    text.remove_prefix(std::min(text.size(), word.size() + 1));
  }
  return out + line + "\n";
}

std::string HelpRow(const std::string& left, std::string_view text, std::size_t column) {
  std::string filled = Fill(text, column);
  if (left.size() + 4 <= column) {
    return "  " + left + filled.substr(2 + left.size());
  }
  return "  " + left + "\n" + filled;
}

std::string Left(const OptionRow& row) {
  std::string out = fmt::format("{}", fmt::join(row.names, ", "));
  return row.value.empty() ? out : out + " " + row.value;
}

// Roff: text in which nothing is a request or an escape.
std::string Roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if (c == '\'') {
      out += "\\(aq";
    } else if (c == '`') {
      out += "\\(ga";
    } else {
      out += c;
    }
  }
  return out.starts_with('.') ? fmt::format("\\&{}", out) : out;
}

std::string RoffTitle(const std::string& page) {
  return fmt::format(".TH \"{}\" 1 \"\" \"reshard {}\" \"reshard manual\"\n", UpperCase(Roff(page)),
                     RESHARD_VERSION);
}

std::string RoffItem(std::string_view head, std::string_view text) {
  return fmt::format(".TP\n\\fB{}\\fR\n{}\n", Roff(head), Roff(text));
}

std::string RoffExitStatus(const std::string& yes, const std::string& no,
                           const std::string& failed) {
  return ".SH \"EXIT STATUS\"\n" + RoffItem("0", yes) + RoffItem("1", no) + RoffItem("2", failed);
}

std::string SeeAlso(const CommandTable& commands) {
  std::string out = ".SH \"SEE ALSO\"\n";
  for (std::size_t i = 0; i < commands.size(); ++i) {
    out += fmt::format(".BR {} (1){}\n", Roff("reshard-" + commands[i].command->text().name),
                       i + 1 == commands.size() ? "" : ",");
  }
  return out;
}

}  // namespace

std::string ValueName(const CLI::Option& option) {
  const std::string name = option.get_type_name();
  return name.substr(0, name.find(':'));
}

std::string UsageLine(const BoundCommand& command) { return "usage: " + Synopsis(command); }

std::string ProgramHelp(const CommandTable& commands) {
  std::string out = fmt::format("reshard {}: {}\n\n", RESHARD_VERSION, kProgramSummary);
  out += "usage: reshard COMMAND [OPTIONS] PATH...\n\ncommands:\n";
  for (const BoundCommand& bound : commands) {
    out += HelpRow(bound.command->text().name, bound.command->text().summary, 12);
  }
  out += HelpRow("help", "show this, or the help of a command: reshard help COMMAND", 12);
  out += "\n" + Fill(kProgramText, 0) + "\nexamples:\n";
  for (const BoundCommand& bound : commands) {
    out += "  " + bound.command->text().examples[0].line + "\n";
  }
  return out + "\n" + Fill(fmt::format("exit status: {}", kExitText), 0);
}

std::string CommandHelp(const BoundCommand& bound) {
  const CommandText& text = bound.command->text();
  std::string out =
      fmt::format("reshard {}: {}\n\n{}\n", text.name, text.summary, UsageLine(bound));
  for (const std::string& paragraph : text.paragraphs) {
    out += "\n" + Fill(paragraph, 0);
  }
  out += "\noptions:\n";
  for (const OptionRow& row : RowsOf(*bound.app)) {
    out += HelpRow(Left(row), row.text, 24);
  }
  out += "\nexamples:\n";
  for (const Example& example : text.examples) {
    out += fmt::format("  {}\n      {}\n", example.line, example.what);
  }
  out += "\nexit status:\n";
  out += HelpRow("0", text.exit_0, 5);
  out += HelpRow("1", text.exit_1, 5);
  return out + HelpRow("2", text.exit_2, 5);
}

std::string ProgramManPage(const CommandTable& commands) {
  std::string out = RoffTitle("reshard");
  out += fmt::format(".SH NAME\nreshard \\- {}\n", Roff(kProgramSummary));
  out += ".SH SYNOPSIS\n\\fBreshard\\fR COMMAND [OPTIONS] PATH...\n";
  out += fmt::format(".SH DESCRIPTION\n{}\n", Roff(kProgramText));
  out += ".SH COMMANDS\n";
  for (const BoundCommand& bound : commands) {
    out += RoffItem(bound.command->text().name, bound.command->text().summary);
  }
  out += RoffItem("help", "show the help of a command");
  out += ".SH OPTIONS\n" + RoffItem("--help", "show help") + RoffItem("--version", "show version");
  out += fmt::format(".SH \"EXIT STATUS\"\n{}\n", Roff(kExitText));
  return out + SeeAlso(commands);
}

std::string CommandManPage(const BoundCommand& bound) {
  const CommandText& text = bound.command->text();
  std::string out = RoffTitle("reshard-" + text.name);
  out += fmt::format(".SH NAME\n{} \\- {}\n", Roff("reshard-" + text.name), Roff(text.summary));
  out += fmt::format(".SH SYNOPSIS\n\\fB{}\\fR\n.SH DESCRIPTION\n", Roff(Synopsis(bound)));
  for (const std::string& paragraph : text.paragraphs) {
    out += fmt::format(".PP\n{}\n", Roff(paragraph));
  }
  out += ".SH OPTIONS\n";
  for (const OptionRow& row : RowsOf(*bound.app)) {
    out += RoffItem(Left(row), row.text);
  }
  out += RoffExitStatus(text.exit_0, text.exit_1, text.exit_2);
  out += ".SH EXAMPLES\n";
  for (const Example& example : text.examples) {
    out += RoffItem(example.line, example.what);
  }
  return out + ".SH \"SEE ALSO\"\n.BR reshard (1)\n";
}

std::string BashCompletion(const CommandTable& commands) {
  std::string names;
  std::string cases;
  for (const BoundCommand& bound : commands) {
    const std::string& name = bound.command->text().name;
    std::string options;
    std::string values;
    for (const OptionRow& row : RowsOf(*bound.app)) {
      for (const std::string& option : row.positional ? std::vector<std::string>() : row.names) {
        options += (options.empty() ? "" : " ") + option;
        if (!row.value.empty()) {
          values += (values.empty() ? "" : "|") + option;
        }
      }
    }
    names += name + " ";
    cases += fmt::format("    {})\n      options='{}'\n      with_value='{}'\n      ;;\n", name,
                         options, values);
  }
  return fmt::format(R"(# bash completion for reshard {0}, generated by the program itself.
_reshard() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}}
  local options='' with_value=''
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W '{1}help --help --version' -- "$word")
    return
  fi
  case ${{COMP_WORDS[1]}} in
    help)
      mapfile -t COMPREPLY < <(compgen -W '{1}' -- "$word")
      return
      ;;
{2}  esac
  if [[ -n $with_value && "|$with_value|" == *"|$before|"* ]]; then
    return
  fi
  if [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
  else
    mapfile -t COMPREPLY < <(compgen -d -- "$word")
    compopt -o filenames 2>/dev/null
  fi
}}
complete -F _reshard reshard
)",
                     RESHARD_VERSION, names, cases);
}

}  // namespace reshard::cli
