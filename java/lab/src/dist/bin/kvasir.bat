@echo off
rem The command kvasir. Needs a Java 17 or newer: JAVA_HOME's, or the one on the PATH.
setlocal
set "JAVA=java"
if defined JAVA_HOME set "JAVA=%JAVA_HOME%\bin\java"
"%JAVA%" -XX:+UseSerialGC %KVASIR_OPTS% -jar "%~dp0..\lib\kvasir-command.jar" %*
exit /b %ERRORLEVEL%
