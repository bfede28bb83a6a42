# Run as a script: cmake -DOUTPUT=x.cc -DROOT=dir "-DFILES=a;b" -P LaminaEmbed.cmake
# Writes the C++ file that defines StaticFile() of gateway/static_files.h over the files of ROOT.
set(entries "")
foreach(name IN LISTS FILES)
  file(READ ${ROOT}/${name} content)
  string(APPEND entries "  if (name == \"${name}\") {\n    return R\"lamina(${content})lamina\";\n  }\n")
endforeach()
file(
  WRITE ${OUTPUT}
  "#include \"gateway/static_files.h\"\n\nnamespace lamina::gateway {\n\nabsl::string_view StaticFile(absl::string_view name) {\n${entries}  return {};\n}\n\n}  // namespace lamina::gateway\n"
)
