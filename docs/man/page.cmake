# cmake -DSCDOC= -DHVDD= -DHVDRUN= -DSOURCE=page.scd -DOUT=page -P page.cmake: one man page, with the options of hvdd for @OPTIONS@,
# in hvdrun(1) those of hvdrun.
# In hvdd.conf(5) they are named without dashes, and those of the command line alone are left out.
file(READ ${SOURCE} text)
if(text MATCHES "@OPTIONS@")
  set(program ${HVDD})
  if(SOURCE MATCHES "hvdrun")
    set(program ${HVDRUN})
  endif()
  execute_process(COMMAND ${program} --help-man OUTPUT_VARIABLE options COMMAND_ERROR_IS_FATAL ANY)
  string(STRIP "${options}" options)
  if(SOURCE MATCHES "conf\\.5")
    string(REGEX REPLACE "[*]--[^\n]*\n\t[^\n]*Command line only\\.\n*" "" options "${options}\n")
    string(REPLACE "*--" "*" options "${options}")
  endif()
  string(REPLACE "@OPTIONS@" "${options}" text "${text}")
endif()
file(WRITE ${OUT}.scd "${text}")
execute_process(COMMAND ${SCDOC} INPUT_FILE ${OUT}.scd OUTPUT_FILE ${OUT} COMMAND_ERROR_IS_FATAL ANY)
